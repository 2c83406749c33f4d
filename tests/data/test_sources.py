"""Sources: what each layout is read as, and what a damaged one says."""

from __future__ import annotations

import gzip
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedsift.core.errors import ConfigError, DataError
from fedsift.data.build import build
from fedsift.data.dataset import Dataset
from fedsift.data.download import data_roots
from fedsift.data.noise.base import noises
from fedsift.data.noise.cifar_n import CifarN
from fedsift.data.partitions.base import partitions
from fedsift.data.sources.base import sources
from tests.data.pictures_on_disk import labelled_folder, picture, table


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSIFT_DATA", raising=False)


def load(name: str, **options) -> Dataset:
    return sources.get(name)(**options).load()


# digits, npz, limits


def test_digits_are_bytes_with_a_stratified_split():
    digits = load("digits")
    assert digits.images.shape == (1797, 1, 8, 8)
    assert digits.images.dtype == np.uint8
    assert digits.images.max() == 255
    assert len(digits.test) == 449
    train, test = (np.bincount(digits.labels[rows]) for rows in (digits.train, digits.test))
    assert np.abs(test / (train + test) - 0.25).max() < 0.01
    assert digits.mean[0] == pytest.approx(digits.images[digits.train].mean() / 255, abs=1e-6)
    assert digits.std[0] == pytest.approx(digits.images[digits.train].std() / 255, abs=1e-6)


def test_limits_keep_the_classes_proportions():
    small = load("digits", train_limit=300, test_limit=50)
    assert (len(small.train), len(small.test)) == (300, 50)
    assert np.ptp(np.bincount(small.labels[small.train])) <= 2
    assert np.array_equal(small.train, load("digits", train_limit=300).train)


def test_npz_with_all_columns(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(20) % 2
    np.savez(
        tmp_path / "mine.npz",
        images=rng.integers(0, 255, (20, 6, 6, 3), dtype=np.uint8),
        labels=labels,
        given=1 - labels,
        classes=["cat", "dog"],
        site=["a"] * 12 + ["b"] * 8,
        group=np.arange(20) // 2,
    )
    dataset = load("npz", path=tmp_path / "mine.npz", test_fraction=0.2)
    assert dataset.shape == (3, 6, 6)
    assert dataset.classes == ("cat", "dog")
    assert not set(dataset.groups[dataset.train]) & set(dataset.groups[dataset.test])
    assert (dataset.given != dataset.labels).all()
    assert dataset.sites.tolist()[:1] == ["a"]
    turned = load("npz", path=tmp_path / "mine.npz", classes=("dog", "cat"))
    assert np.array_equal(turned.labels, 1 - dataset.labels)
    # Every dog was annotated as a cat, and cats are left out.
    assert len(load("npz", path=tmp_path / "mine.npz", classes=("dog",)).train) == 0
    with pytest.raises(DataError, match="no class 'cow'"):
        load("npz", path=tmp_path / "mine.npz", classes=("cow",))


def test_ids_that_stand_twice_in_an_npz_are_noted(tmp_path):
    images, labels = np.zeros((4, 2, 2), np.uint8), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "a.npz", images=images, labels=labels, ids=np.array(["x", "y", "x", "z"]))
    [note] = load("npz", path=tmp_path / "a.npz").notes
    assert note == "1 ids stand for more than one sample, e.g. 'x' for 2: give every row an id of its own"
    np.savez(
        tmp_path / "b.npz",
        images=images,
        labels=labels,
        ids=np.array(["w", "x", "y", "z"]),
        test_images=images,
        test_labels=labels,
    )
    assert load("npz", path=tmp_path / "b.npz").notes == ()  # test samples without an id are no duplicates


def test_npz_errors_name_the_array_and_the_file(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        load("npz", path=tmp_path / "none.npz")
    np.savez(tmp_path / "a.npz", pictures=np.zeros((2, 2, 2)))
    with pytest.raises(DataError, match="no array 'images': it holds pictures"):
        load("npz", path=tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", images=np.zeros((2, 2, 2)), labels=np.zeros(3))
    with pytest.raises(DataError, match="2 images but 3 labels"):
        load("npz", path=tmp_path / "b.npz")
    for name in ("group", "site", "ids"):
        short = {name: np.array(["a"])}
        np.savez(tmp_path / "b.npz", images=np.zeros((2, 2, 2)), labels=np.zeros(2, int), **short)
        with pytest.raises(DataError, match=f"array '{name}' has 1 entries for 2 images"):
            load("npz", path=tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", images=np.zeros((2, 2, 2)), labels=np.array([0.5, 1]))
    with pytest.raises(DataError, match="whole numbers"):
        load("npz", path=tmp_path / "c.npz")
    (tmp_path / "d.npz").write_bytes(b"not a zip")
    with pytest.raises(DataError, match="cannot be read"):
        load("npz", path=tmp_path / "d.npz")


def test_a_path_may_start_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    np.savez(tmp_path / "mine.npz", images=np.zeros((4, 2, 2), np.uint8), labels=[0, 1, 0, 1])
    assert len(load("npz", path=Path("~/mine.npz")).train) == 4


def test_npz_of_features_and_multi_label(tmp_path):
    np.savez(
        tmp_path / "f.npz",
        images=np.random.default_rng(0).normal(size=(9, 5)),
        labels=np.eye(9, 3, dtype=int),
    )
    dataset = load("npz", path=tmp_path / "f.npz")
    assert dataset.multilabel
    assert dataset.images.dtype == np.float32
    assert dataset.shape == (5,)
    assert (dataset.mean, dataset.std) == ((0.0,), (1.0,))


# folders


def test_folder_with_a_table(tmp_path):
    root = labelled_folder(
        tmp_path / "mine", split=lambda k: "test" if k % 4 == 0 else "train", site=lambda k: f"clinic {k % 3}"
    )
    dataset = load("folder", path=root, size=8)
    assert dataset.images.shape == (40, 3, 8, 8)
    assert dataset.classes == ("benign", "malignant")
    assert len(dataset.test) == 10
    assert dataset.ids[0] == "p000"
    federated = build(dataset, partitions.get("natural")(), noises.get("clean")(), seed=1)
    assert federated.sites == ("clinic 0", "clinic 1", "clinic 2")


def test_folder_layout_without_a_table(tmp_path):
    for k in range(8):
        picture(tmp_path / "d" / ("train" if k < 6 else "test") / ("cat" if k % 2 else "dog") / f"{k}.png", k)
    dataset = load("folder", path=tmp_path / "d", size=4)
    assert dataset.classes == ("cat", "dog")
    assert (len(dataset.train), len(dataset.test)) == (6, 2)


def test_a_table_of_numbers_is_told_where_numbers_go(tmp_path):
    (tmp_path / "labels.csv").write_text("id,label,age,pressure\na,ill,61,140\n")
    with pytest.raises(DataError, match=r'no picture in .*rows of numbers are read by name = "table".*name = "npz"'):
        load("folder", path=tmp_path)


def test_zip_and_folder_give_the_same_pictures(tmp_path):
    root = labelled_folder(tmp_path / "mine", 6)
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        for file in sorted((root / "pictures").iterdir()):
            archive.write(file, f"inside/{file.name}")
    from_zip = load("folder", path=tmp_path / "mine.zip", table=root / "labels.csv", size=8)
    assert np.array_equal(from_zip.images, load("folder", path=root, size=8).images)


def test_broken_and_missing_pictures_are_left_out_and_listed(tmp_path):
    root = labelled_folder(tmp_path / "mine", 10)
    (root / "pictures" / "p003.png").write_bytes(b"\x89PNG broken")
    (root / "pictures" / "p004.png").write_bytes((root / "pictures" / "p004.png").read_bytes()[:60])
    (root / "pictures" / "p005.png").unlink()
    dataset = load("folder", path=root, size=8)
    assert sorted(set(range(10)) - {int(name[1:]) for name in dataset.ids}) == [3, 4, 5]
    assert any("2 pictures could not be read" in note and "p003.png" in note for note in dataset.notes)
    assert any("not there" in note and "p005" in note for note in dataset.notes)
    federated = build(dataset, partitions.get("iid")(sites=2), noises.get("clean")(), seed=1)
    assert any("could not be read" in note for note in federated.notes)


def test_rows_follow_names_but_training_order_follows_the_table(tmp_path):
    root = labelled_folder(tmp_path / "mine", 5)
    rows = (root / "labels.csv").read_text().splitlines()
    (root / "labels.csv").write_text("\n".join([rows[0], *reversed(rows[1:])]))
    dataset = load("folder", path=root, size=4)
    assert dataset.ids.tolist() == [f"p{k:03d}" for k in range(5)]
    assert dataset.ids[dataset.train].tolist() == [f"p{k:03d}" for k in reversed(range(5))]


def test_unknown_labels_are_refused_with_the_nearest_name_or_dropped(tmp_path):
    root = labelled_folder(tmp_path / "mine", 8, ("melanoma", "nevus", "melanomma"))
    with pytest.raises(DataError, match=r"'melanomma' \(2 samples; did you mean 'melanoma'\?\).*'p002'"):
        load("folder", path=root, size=4, classes=("melanoma", "nevus"))
    dropped = load("folder", path=root, size=4, classes=("melanoma", "nevus"), unknown="drop")
    assert len(dropped.train) == 6
    assert any("2 samples have labels outside" in note for note in dropped.notes)


def test_column_names_are_checked(tmp_path):
    root = labelled_folder(tmp_path / "mine", 4)
    with pytest.raises(DataError, match="no column 'lable': did you mean 'label'"):
        load("folder", path=root, label_column="lable")
    with pytest.raises(DataError, match="no column 'hospital'"):
        load("folder", path=root, site_column="hospital")
    (root / "labels.csv").write_text("id,label\np000\n")
    with pytest.raises(DataError, match="line 2: 1 values for 2 columns"):
        load("folder", path=root)
    (root / "other.csv").write_text("id\n")
    (root / "labels.csv").rename(root / "third.csv")
    with pytest.raises(DataError, match="several tables"):
        load("folder", path=root)


def test_multi_label_tables_in_both_forms(tmp_path):
    findings = ("", "Mass", "Effusion|Mass", "No Finding")
    root = labelled_folder(tmp_path / "a", 4, label=lambda k: findings[k])
    dataset = load("folder", path=root, size=4, separator="|")
    assert dataset.classes == ("Effusion", "Mass")
    assert dataset.labels.tolist() == [[0, 0], [0, 1], [1, 1], [0, 0]]
    root = labelled_folder(tmp_path / "b", 4, mass=lambda k: k % 2, effusion=lambda k: int(k > 1))
    assert load("folder", path=root, size=4, label_columns=("mass", "effusion")).labels[3].tolist() == [1, 1]
    with pytest.raises(DataError, match="2 classes at once"):
        load("folder", path=root, size=4, label_columns=("mass", "effusion"), one_hot=True)
    single = load("folder", path=root, size=4, label_columns=("mass", "effusion"), one_hot=True, unknown="drop")
    assert single.labels.tolist() == [0, 1]


def test_true_labels_beside_given_ones(tmp_path):
    root = labelled_folder(tmp_path / "mine", 12, truth=lambda k: "benign" if k < 9 else "malignant")
    dataset = load("folder", path=root, size=4, true_column="truth", test_fraction=0.2)
    federated = build(dataset, partitions.get("iid")(sites=1), noises.get("as-given")(), seed=1)
    assert federated.truth is not None
    wrong = (dataset.given != dataset.labels)[federated.rows["site-00"]].mean()
    assert federated.truth.effective_rate("site-00", federated.given["site-00"]) == pytest.approx(wrong)


def test_a_split_column_that_tears_a_group_is_noted(tmp_path):
    root = labelled_folder(
        tmp_path / "m", 8, group=lambda k: f"g{k // 2}", split=lambda k: "test" if k == 0 else "train"
    )
    assert any("1 groups are on both sides" in note for note in load("folder", path=root, size=4).notes)
    bad = labelled_folder(tmp_path / "n", 4, split=lambda k: "tset")
    with pytest.raises(DataError, match=r"'tset'.*neither train, val nor test"):
        load("folder", path=bad, size=4)


# a folder of sites


def test_sites_name_their_classes_and_order_does_not_matter(tmp_path):
    labelled_folder(tmp_path / "s" / "bern", 6, ("cat", "dog"))
    labelled_folder(tmp_path / "s" / "graz", 6, ("dog", "eel"))
    (tmp_path / "s" / "lund").mkdir()
    dataset = load("sites", path=tmp_path / "s", size=4)
    assert dataset.classes == ("cat", "dog", "eel")
    assert any("'lund' is empty" in note for note in dataset.notes)
    federated = build(dataset, partitions.get("natural")(), noises.get("clean")(), seed=1)
    assert federated.sites == ("bern", "graz")
    names = {site: {dataset.classes[c] for c in federated.given[site]} for site in federated.sites}
    assert names == {"bern": {"cat", "dog"}, "graz": {"dog", "eel"}}
    assert dataset.ids[0] == "bern/p000"
    with pytest.raises(DataError, match=r"site 'graz'.*'eel'"):
        load("sites", path=tmp_path / "s", size=4, classes=("cat", "dog"))


def test_multi_label_sites_without_a_column_do_not_annotate_it(tmp_path):
    labelled_folder(tmp_path / "s" / "bern", 6, mass=lambda k: k % 2, nodule=lambda k: 1)
    labelled_folder(tmp_path / "s" / "graz", 6, mass=lambda k: 1)
    dataset = load("sites", path=tmp_path / "s", size=4, label_columns=("nodule", "mass"))
    assert any("'graz' does not annotate nodule" in note for note in dataset.notes)
    federated = build(dataset, partitions.get("natural")(), noises.get("clean")(), seed=1)
    assert federated.annotated["bern"].all()
    assert federated.annotated["graz"].tolist() == [name == "mass" for name in dataset.classes]


# official layouts, written here in small


def cifar_binary(folder: Path, label_bytes: int, names: list[str], count: int, classes: int) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    labels = {}
    for name in names:
        labels[name] = rng.integers(classes, size=count)
        pixels = rng.integers(0, 256, (count, 3072), np.uint8)
        head = np.repeat(labels[name][:, None], label_bytes, axis=1).astype(np.uint8)
        head[:, : label_bytes - 1] = 7
        (folder / name).write_bytes(np.concatenate([head, pixels], axis=1).tobytes())
    return labels


CIFAR10_FILES = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]


def test_cifar10_binary_and_pickle_are_the_same(tmp_path, monkeypatch):
    cifar_binary(tmp_path / "data" / "cifar10" / "cifar-10-batches-bin", 1, [f"{n}.bin" for n in CIFAR10_FILES], 20, 10)
    monkeypatch.setenv("FEDSIFT_DATA", str(tmp_path / "data"))
    assert data_roots()[0] == tmp_path / "data"
    binary = load("cifar10")
    assert (len(binary.train), len(binary.test)) == (100, 20)
    assert binary.classes[3] == "cat"
    folder = tmp_path / "py"
    folder.mkdir()
    for k, name in enumerate(CIFAR10_FILES):
        rows = slice(20 * k, 20 * (k + 1))
        batch = {"data": binary.images[rows].reshape(20, 3072), "labels": binary.labels[rows].tolist()}
        (folder / name).write_bytes(pickle.dumps(batch))
    pickled = load("cifar10", path=folder)
    assert np.array_equal(pickled.images, binary.images)
    assert np.array_equal(pickled.labels, binary.labels)


def test_cifar100_takes_the_fine_label(tmp_path):
    labels = cifar_binary(tmp_path / "c", 2, ["train.bin", "test.bin"], 30, 100)
    dataset = load("cifar100", path=tmp_path / "c")
    assert np.array_equal(dataset.labels, np.concatenate([labels["train.bin"], labels["test.bin"]]))
    assert len(dataset.classes) == len(set(dataset.classes)) == 100


def test_a_damaged_or_hostile_cifar_is_refused(tmp_path):
    cifar_binary(tmp_path / "c", 2, ["train.bin", "test.bin"], 3, 100)
    (tmp_path / "c" / "train.bin").write_bytes(b"123")
    with pytest.raises(DataError, match="damaged"):
        load("cifar100", path=tmp_path / "c")
    folder = tmp_path / "p"
    folder.mkdir()

    class Evil:
        def __reduce__(self):
            return (print, ("this must never run",))

    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps({"data": Evil(), "fine_labels": []}))
    with pytest.raises(DataError, match=r"asks for builtins.print"):
        load("cifar100", path=folder)
    with pytest.raises(DataError, match="fedsift data get cifar10"):
        load("cifar10")


def test_cifar_n_labels_are_checked_and_used(tmp_path):
    cifar_binary(tmp_path / "c", 1, [f"{n}.bin" for n in CIFAR10_FILES], 20, 10)
    dataset = load("cifar10", path=tmp_path / "c")
    clean = dataset.labels[:100]
    worse = np.where(np.arange(100) % 5 == 0, (clean + 1) % 10, clean)
    np.savez(tmp_path / "CIFAR-10_human.npz", clean_label=clean, worse_label=worse)
    noise = CifarN(labels="worst", path=tmp_path)
    federated = build(dataset, partitions.get("iid")(sites=4), noise, seed=1)
    assert all(federated.truth.level[s] == pytest.approx(0.2) for s in federated.sites)
    changed = sum((federated.given[s] != federated.truth.clean[s]).sum() for s in federated.sites)
    assert changed == 20
    np.savez(tmp_path / "CIFAR-10_human.npz", clean_label=worse, worse_label=worse)
    with pytest.raises(DataError, match="official order"):
        build(dataset, partitions.get("iid")(sites=4), noise, seed=1)
    np.save(tmp_path / "other.npy", {"clean_label": clean, "worse_label": worse})
    federated = build(dataset, partitions.get("iid")(sites=4), CifarN(path=tmp_path / "other.npy"), seed=1)
    assert len(federated.truth.noisy) == 4
    with pytest.raises(DataError, match="no labels 'aggre_label'"):
        build(dataset, partitions.get("iid")(sites=4), CifarN("aggregate", tmp_path / "other.npy"), seed=1)


def test_idx_files_plain_and_packed(tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for side, count in (("train", 12), ("t10k", 4)):
        images = rng.integers(0, 256, (count, 5, 5), np.uint8)
        (folder / f"{side}-images-idx3-ubyte.gz").write_bytes(
            gzip.compress(struct.pack(">BBBBIII", 0, 0, 8, 3, count, 5, 5) + images.tobytes())
        )
        (folder / f"{side}-labels-idx1-ubyte").write_bytes(
            struct.pack(">BBBBI", 0, 0, 8, 1, count) + bytes(range(count))[:count]
        )
    dataset = load("fashion-mnist", path=folder, train_limit=0)
    assert dataset.images.shape == (16, 1, 5, 5)
    assert dataset.labels[:3].tolist() == [0, 1, 2]
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, 99) + b"abc")
    with pytest.raises(DataError, match="its header says"):
        load("mnist", path=folder)


def test_medmnist_multi_class_and_multi_label(tmp_path):
    rng = np.random.default_rng(0)

    def side(n, labels):
        return rng.integers(0, 256, (n, 7, 7), np.uint8), labels

    for name, width in (("pneumoniamnist", 1), ("chestmnist", 14)):
        arrays = {}
        for part, n in (("train", 10), ("val", 4), ("test", 6)):
            arrays[f"{part}_images"], arrays[f"{part}_labels"] = side(n, rng.integers(0, 2, (n, width)))
        np.savez(tmp_path / f"{name}.npz", **arrays)
    one = load("medmnist", dataset="pneumoniamnist", path=tmp_path)
    assert (len(one.train), len(one.test), one.multilabel) == (14, 6, False)
    many = load("medmnist", dataset="chestmnist", path=tmp_path, validation="drop")
    assert (len(many.train), many.n_classes, many.multilabel) == (10, 14, True)


def test_ham10000_has_natural_sites_and_splits_by_lesion(tmp_path):
    root = tmp_path / "ham"
    rows = []
    for k in range(40):
        picture(root / "part_1" / f"ISIC_{k:03d}.jpg", k)
        rows.append(
            {
                "lesion_id": f"L{k // 2}",
                "image_id": f"ISIC_{k:03d}",
                "dx": ("nv", "mel")[k % 4 == 0],
                "dataset": f"s{k % 2}",
            }
        )
    table(root / "HAM10000_metadata.csv", rows)
    dataset = load("ham10000", path=root, size=8)
    assert dataset.classes == ("mel", "nv")
    assert len(dataset.test) == 8
    assert not set(dataset.groups[dataset.train]) & set(dataset.groups[dataset.test])
    assert set(dataset.sites) == {"s0", "s1"}


def test_isic_drops_images_without_a_single_class_and_keeps_lesions_together(tmp_path):
    root = tmp_path / "isic"
    classes = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK")
    rows, metadata = [], []
    for k in range(20):
        picture(root / "ISIC_2019_Training_Input" / f"I{k:02d}.jpg", k)
        rows.append({"image": f"I{k:02d}", **{name: float(name == classes[k % 9]) for name in classes}})
        metadata.append({"image": f"I{k:02d}", "lesion_id": "" if k == 0 else f"L{k // 3}"})
    table(root / "ISIC_2019_Training_GroundTruth.csv", rows)
    table(root / "ISIC_2019_Training_Metadata.csv", metadata)
    dataset = load("isic2019", path=root, size=8)
    assert len(dataset.train) + len(dataset.test) == 18
    assert not set(dataset.groups[dataset.train]) & set(dataset.groups[dataset.test])
    assert dataset.mean == (0.485, 0.456, 0.406)


def test_ich_lists_single_subtype_or_all(tmp_path):
    root = tmp_path / "ich"
    subtypes = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
    for side, start in (("train", 0), ("test", 10)):
        rows = []
        for k in range(start, start + 10):
            picture(root / "png" / f"ID_{k}.png", k)
            rows.append({"image": f"ID_{k}", **{name: int(j == k % 5 or k == 3) for j, name in enumerate(subtypes)}})
        table(root / f"{side}.csv", rows)
    single = load("ich", path=root, size=8)
    assert (len(single.train), len(single.test), single.multilabel) == (9, 10, False)
    several = load("ich", path=root, size=8, multilabel=True)
    assert (len(several.train), several.multilabel) == (10, True)


def test_chest_xrays_from_tables_and_from_arrays(tmp_path):
    root = tmp_path / "nih"
    rows = []
    for k in range(24):
        picture(root / "images_001" / "images" / f"{k:08d}_000.png", k)
        finding = "Mass|Effusion" if k % 3 == 0 else ("Effusion" if k % 3 == 1 else "No Finding")
        rows.append(
            {"Image Index": f"{k:08d}_000.png", "Finding Labels": finding, "Patient ID": k // 2,
             "View Position": "AP" if k >= 20 else "PA"}
        )  # fmt: skip
    table(root / "Data_Entry_2017.csv", rows)
    dataset = load("chestxray14", path=root, size=8, findings=2)
    assert dataset.classes == ("Effusion", "Mass")
    assert dataset.shape == (1, 8, 8)
    assert len(dataset.train) + len(dataset.test) == 20
    assert not set(dataset.groups[dataset.train]) & set(dataset.groups[dataset.test])
    np.savez(
        tmp_path / "x.npz", images=np.zeros((6, 4, 4), np.uint8), labels=np.eye(6, 3, dtype=np.uint8),
        classes=["a", "b", "c"], patient=[1, 1, 2, 2, 3, 3], view=["PA"] * 5 + ["AP"],
    )  # fmt: skip
    packed = load("chestxray14", path=tmp_path / "x.npz", classes=("c", "a"))
    assert packed.classes == ("c", "a")
    assert len(packed.train) + len(packed.test) == 5
    with pytest.raises(ConfigError, match="3 findings, not 8"):
        load("chestxray14", path=tmp_path / "x.npz")


def test_chest_xrays_shrink_by_averaging_blocks(tmp_path):
    images = np.zeros((4, 4, 4), np.uint8)
    images[0, :2, :2] = [[0, 1], [2, 3]]
    images[0, 2:, 2:] = 255
    np.savez(
        tmp_path / "x.npz", images=images, labels=np.eye(4, 3, dtype=np.uint8),
        classes=["a", "b", "c"], patient=[1, 2, 3, 4],
    )  # fmt: skip
    small = load("chestxray14", path=tmp_path / "x.npz", findings=3, shrink=2)
    assert small.shape == (1, 2, 2)
    assert small.images[0, 0].tolist() == [[2, 0], [0, 255]]
    with pytest.raises(ConfigError, match="do not divide"):
        load("chestxray14", path=tmp_path / "x.npz", findings=3, shrink=3)


def test_clothing1m_has_noisy_training_labels_and_no_truth(tmp_path):
    root = tmp_path / "clothing1m"
    for k in range(20):
        picture(root / "images" / "0" / f"{k}.jpg", k)
    (root / "noisy_label_kv.txt").write_text("".join(f"images/0/{k}.jpg {k % 3}\n" for k in range(15)))
    (root / "noisy_train_key_list.txt").write_text("".join(f"images/0/{k}.jpg\n" for k in range(15)))
    (root / "clean_label_kv.txt").write_text("".join(f"images/0/{k}.jpg 13\n" for k in range(15, 20)))
    (root / "clean_test_key_list.txt").write_text("".join(f"images/0/{k}.jpg\n" for k in range(15, 20)))
    dataset = load("clothing1m", path=root, size=8)
    assert (len(dataset.train), len(dataset.test), dataset.trusted) == (15, 5, False)
    assert dataset.classes[dataset.labels[dataset.test[0]]] == "Underwear"
    assert build(dataset, partitions.get("iid")(sites=3), noises.get("clean")(), seed=1).truth is None
    few = load("clothing1m", path=root, size=8, a_class=2)
    assert np.bincount(few.labels[few.train]).tolist() == [2, 2, 2]


# plug-ins


def test_a_plug_in_is_two_functions_behind_an_entry_point(monkeypatch, tmp_path):
    from importlib.metadata import EntryPoint

    (tmp_path / "toy_plugin.py").write_text(
        "import numpy as np\n"
        "def describe():\n    return 'toy'\n"
        "def load(path):\n"
        "    images, labels = np.zeros((8, 3, 3), np.uint8), np.arange(8) % 2\n"
        "    return {'images': images, 'labels': labels, 'classes': ['x', 'y']}\n"
    )
    (tmp_path / "half_plugin.py").write_text("def load(path):\n    return 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    entries = [
        EntryPoint("toy-plugin", "toy_plugin", sources.group),
        EntryPoint("half", "half_plugin", sources.group),
    ]
    monkeypatch.setattr(sources, "_plugins", {entry.name: entry for entry in entries})
    monkeypatch.setattr(sources, "_entries", dict(sources._entries))
    assert {"toy-plugin", "half"} <= set(sources)
    dataset = load("toy-plugin", test_fraction=0.25)
    assert dataset.classes == ("x", "y")
    assert len(dataset.test) == 2
    assert sources.get("toy-plugin").about() == "toy"
    assert "broken" in sources.get("half").about()
    with pytest.raises(DataError, match="has no function 'describe'"):
        load("half")
