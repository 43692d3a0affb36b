"""Which projects a person has trusted: what each part would do, and whether it has changed.

In: the files of a project, and what a person answers. Out: the parts that count, and what to show
of the others. What was trusted is kept outside of the project, by digest. It must not start,
import or expand anything of a project.
"""
