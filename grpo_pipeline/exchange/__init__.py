"""Step-labelled solutions in others' forms: read, write, and hand on as a data set.

`forms.FORMS` lists the forms; each has a module of its own. All meet in `records.StepRecord` and
`records.PairRecord`.
"""
