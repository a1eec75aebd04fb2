"""What every job that the fork server forks would otherwise do for itself, 0.06 s each time.

The server alone imports this module.
"""

from hydra.core.plugins import Plugins

from clozelab import hydra_compat
from clozelab.launch import plugins
from clozelab.runs.code import hash_and_imports, sources_of_results
from clozelab.training.host import host_facts
from clozelab.training.stopping import leave_signals_to_parent

# What reaches the whole group is the launcher's to handle; where it ends, for whatever reason, so
# do we at once.
leave_signals_to_parent()

hydra_compat.register()
plugins.register()
Plugins.instance()  # looks for all that are installed
# a job runs the code that is loaded now, whatever is checked out when it records its commit
host_facts()
for source in sources_of_results().values():
    hash_and_imports(source)
