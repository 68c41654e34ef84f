"""Child processes: one a stage, gone with its parent whatever ends that, and one stage at a time on a GPU.

flow process -> server (`server`, imports torch once) -> worker (`worker`, forked, one a call) -> what the stage starts

Each dies with the one before it by PR_SET_PDEATHSIG. Processes that re-parent themselves or open a session of their
own are found by a mark in their environment (`guard`).
"""
