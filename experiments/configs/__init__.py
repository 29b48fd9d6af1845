"""One file a run, named `<target>_<drafter>[_<rule>].py`; see `experiments.config`."""
