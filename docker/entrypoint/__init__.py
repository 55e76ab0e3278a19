"""Start-up of the image, with the distribution's python3 and nothing but the standard library.

    start       settings -> gather -> plan -> apply -> exec (s6-svscan, or the user's command)
    session     what sshd runs for every login and command: loads the container's environment
    health      the HEALTHCHECK
    after_ready the self-test, once the services answer
    stop        the last step of s6-svscan: SIGTERM to whatever still runs, and a real wait

`gather` reads and changes nothing; `plan` is pure, so most tests are there; `apply` does what the plan says.
"""
