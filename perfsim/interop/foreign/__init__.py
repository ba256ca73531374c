"""Files of other tools read into descriptions of perfsim: a model, how it is trained, what was measured."""
