"""`python -m magnetar` is the command `magnetar`."""

from magnetar_core.runtime.process.own_packages import leave_out_current_folder

leave_out_current_folder()

from magnetar.cli.main import main  # noqa: E402  after the path is ours

main()
