"""`python -m hone …` becomes the program."""
import os
import sys

import hone

os.execv(hone.program(), ["hone", *sys.argv[1:]])
