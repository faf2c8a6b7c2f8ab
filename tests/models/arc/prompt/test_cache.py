import numpy as np
import pytest
import torch

from searchlight.models.arc.prompt import VectorCache, hash_puzzle, load_language_model

KEYS = ["a", "b", "c"]
TEXTS = ["The grid is mirrored.", "Cells are moved. Sizes stay.", "Nothing is shown."]


@pytest.fixture
def reads(tiny, monkeypatch) -> list[int]:
    """How many texts were read, at each call of the model."""
    counts = []
    hook = tiny.register_forward_pre_hook(lambda module, args: counts.append(len(args[0].unique(dim=0))))
    yield counts
    hook.remove()


def test_vectors_are_computed_once_and_are_leaves(tiny, reads) -> None:
    cache = VectorCache()
    first = cache.get_vectors(KEYS[:2], TEXTS[:2], tiny)
    assert first.is_leaf
    assert not first.requires_grad
    torch.testing.assert_close(first, tiny(tiny.tokenize(TEXTS[:2])), atol=1e-5, rtol=1e-5)
    expected = first.clone()
    first.zero_()  # which does not reach the cache
    reads.clear()
    again = cache.get_vectors([*KEYS, "a"], [*TEXTS, TEXTS[0]], tiny)
    assert reads == [1]
    assert torch.equal(again[[0, 1, 3]], expected[[0, 1, 0]])
    assert cache.get_vectors([], [], tiny).shape == (0, tiny.hidden)
    with pytest.raises(ValueError, match="language must be frozen"):
        cache.get_vectors(["a"], ["moved"], load_language_model(None, None, trainable=True))


def test_a_vector_is_the_same_bits_in_any_company(tiny) -> None:
    random = np.random.default_rng(0)
    texts = ["".join(random.choice(list("abc ."), size=random.integers(1, 200))) for _ in range(20)]
    together, cache = VectorCache().get_vectors(texts, texts, tiny), VectorCache()
    assert torch.equal(torch.cat([cache.get_vectors([text], [text], tiny) for text in texts]), together)


def test_another_puzzle_text_model_or_revision_is_a_miss(tiny, reads, saved, tmp_path) -> None:
    cache = VectorCache(tmp_path)
    cache.get_vectors(["a"], ["moved"], tiny)
    reads.clear()
    cache.get_vectors(["b"], ["moved"], tiny)
    cache.get_vectors(["a"], ["mirrored"], tiny)
    assert len(reads) == 2
    newer = load_language_model(None, None, False)
    newer.revision = "tiny-2"
    with torch.no_grad():
        newer.model.norm.weight.mul_(2)
    torch.testing.assert_close(
        cache.get_vectors(["a"], ["moved"], newer), 2 * cache.get_vectors(["a"], ["moved"], tiny)
    )
    small = load_language_model(str(saved), None, False)
    assert cache.get_vectors(["a"], ["moved"], small).shape == (1, 32)


@pytest.mark.parametrize("damage", ["empty", "half", "pickle", "shape", "infinite"])
def test_a_damaged_file_is_computed_again(tiny, reads, tmp_path, damage) -> None:
    expected = VectorCache(tmp_path).get_vectors(["a"], ["moved"], tiny)
    (file,) = tmp_path.iterdir()
    bad = {"pickle": np.array([{}]), "shape": np.zeros((2, 3), np.float32), "infinite": np.full(64, np.inf, np.float32)}
    if damage in bad:
        np.save(file, bad[damage], allow_pickle=True)
    else:
        file.write_bytes(file.read_bytes()[: 0 if damage == "empty" else 150])
    reads.clear()
    for _ in range(2):
        assert torch.equal(VectorCache(tmp_path).get_vectors(["a"], ["moved"], tiny), expected)
    assert reads == [1]


def test_a_puzzles_key_follows_what_is_seen_of_it() -> None:
    one, two = np.zeros((2, 3), np.uint8), np.ones((2, 3), np.uint8)
    seen = [([(one, two)], one), ([(one, two)], two), ([(two, one)], one), ([], one), ([(one.T, two)], one)]
    assert len({hash_puzzle(*puzzle) for puzzle in seen}) == len(seen)
    assert hash_puzzle([(one.copy(), two[:, ::-1])], one) == hash_puzzle([(one, two)], one)
