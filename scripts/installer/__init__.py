"""Installs the appliance, switches between its versions, and takes it away again.

Standard library only, with the system's Python: it runs before there is an environment, and after one is
damaged. Nothing that runs is ever changed in place. A release is built under another name, seen by
one rename, and run by another; what goes wrong before leaves the box as it was, and what
goes wrong after is put back.

    layout        names of folders and files
    target        the box or the tree that stands in for it, and how files are put there
    actions       a step: done already? in words, and how
    source        the checkout: what of it is installed
    wheels        a folder of wheels, for a box without a network
    environment   the virtual environment of a release
    releases      what is installed, by its own record
    system        units, links and the configuration, as a release wants them
    bundles       the model's files
    switching     from one release to another, proven or put back
    preflight     what is refused, and what to do then
    speaking      services, a voice, a sentence, health
    installation  all of it, in order
    removal       the way back
    running       what the scripts share
    old_python    the refusal of a Python that cannot read the rest
    offline       makes the folder of wheels, on a machine with a network
    debian        the Debian package, which takes the place of most of the above
"""
