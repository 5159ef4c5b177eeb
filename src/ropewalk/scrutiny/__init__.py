"""Is a file of statistics true of a model? Does a device compute what the CPU does?"""

from ropewalk.scrutiny.devices import examine_device
from ropewalk.scrutiny.examination import examine_statistics

__all__ = ["examine_device", "examine_statistics"]
