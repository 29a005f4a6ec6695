"""What a machine reads: the files of an answer. Floor 6. In: a solution. Out: files, each whole or not at all."""
