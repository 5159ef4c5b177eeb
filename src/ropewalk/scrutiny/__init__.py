"""Is a file of statistics true of a model?"""

from ropewalk.scrutiny.examination import examine_statistics

__all__ = ["examine_statistics"]
