"""The workers of one runtime on their hosts: how each is started, what it uses, and how fast its host builds."""
