"""What a machine of the simulated world is made of: processes on a loop whose time is made up, a
disk, what crosses to others, and the agents' doubles. It knows no whole world. One thread.
"""
