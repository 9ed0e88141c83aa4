"""The workshop's tests run on one thread each, and share the small bundles that they make."""

from collections.abc import Iterator

import pytest

from tests.harness import small
from tests.harness.small import BuiltBundle, Workshop


@pytest.fixture(scope="session")
def workshop() -> Workshop:
    """Small bundles, each made once."""
    return Workshop()


@pytest.fixture(scope="session")
def made(workshop: Workshop) -> BuiltBundle:
    """The default architecture in float32."""
    return workshop.make("v1")


@pytest.fixture(scope="session")
def fp16(workshop: Workshop) -> BuiltBundle:
    return workshop.make("v1", precision="fp16")


@pytest.fixture(scope="session")
def int8(workshop: Workshop) -> BuiltBundle:
    return workshop.make("v1", precision="int8")


@pytest.fixture
def brief_gate() -> Iterator[None]:
    """See `small.brief_gate`."""
    with small.brief_gate():
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Compute with one thread and random weights: otherwise a result depends on how sums are split over the
    machine's cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with small.of_random_weights():
        yield
    torch.set_num_threads(before)
