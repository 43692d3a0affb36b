"""Which projects a person has trusted: what each part would do, and whether it has changed.

In: the files of a project, and a person's answers. Out: the parts that count, and what to show of
the others. Trusted digests are stored outside the project. It must not start,
import or expand anything of a project.
"""
