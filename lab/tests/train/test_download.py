"""Downloads of data sets from a web server on this machine."""

from __future__ import annotations

import functools
import http.server
import threading
from dataclasses import replace

import published
import pytest
from data_folders import load

from refocal_lab.train.data.sources import DataError, Download


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""


class TestDownload:
    @pytest.fixture
    def server(self, tmp_path):
        """A web server for one folder."""
        (tmp_path / "web").mkdir()
        handler = functools.partial(Quiet, directory=str(tmp_path / "web"))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as made:
            thread = threading.Thread(target=made.serve_forever)
            thread.start()
            yield f"http://127.0.0.1:{made.server_port}"
            made.shutdown()
            thread.join()

    @pytest.fixture
    def spec(self, tmp_path, server):
        _, _, archive, cifar = published.tiny_cifar("cifar10")
        (tmp_path / "web" / cifar.archive.file).write_bytes(archive)
        download = Download(f"{server}/{cifar.archive.file}", cifar.archive.md5)
        return replace(cifar, archive=download).spec(held_out=2)

    def test_whole(self, tmp_path, spec, capsys):
        found = load(spec, tmp_path / "data", download=True)
        assert len(found.train) == 48
        assert "cifar-10-binary.tar.gz" in capsys.readouterr().err
        (tmp_path / "web" / "cifar-10-binary.tar.gz").unlink()
        load(spec, tmp_path / "data", download=True)  # files that are there are not fetched again

    def test_damaged_on_the_way(self, tmp_path, spec):
        path = tmp_path / "web" / "cifar-10-binary.tar.gz"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(DataError, match=r"sent \d+ bytes with md5 .*, expected md5"):
            load(spec, tmp_path / "data", download=True)
        assert list((tmp_path / "data" / "cifar10").iterdir()) == []

    def test_not_there(self, tmp_path, spec):
        (tmp_path / "web" / "cifar-10-binary.tar.gz").unlink()
        with pytest.raises(
            ConnectionError, match=r"cannot fetch http://127.* 404.*: put cifar-10-binary\.tar\.gz into"
        ):
            load(spec, tmp_path / "data", download=True)

    def test_no_network(self, tmp_path, spec):
        unreachable = replace(spec, downloads=(Download("http://127.0.0.1:9/cifar-10-binary.tar.gz", "0" * 32),))
        with pytest.raises(ConnectionError, match="cannot fetch"):
            load(unreachable, tmp_path / "data", download=True)

    def test_only_what_is_missing(self, tmp_path, server):
        folder = tmp_path / "data"
        _, svhn = published.tiny_svhn(folder)
        (folder / "test_32x32.mat").rename(tmp_path / "web" / "test_32x32.mat")
        spec = svhn.spec(held_out=2)
        with pytest.raises(DataError, match=r"data lacks test_32x32\.mat"):
            load(spec, folder)
        files = tuple(Download(f"{server}/{download.file}", download.md5) for download in spec.downloads)
        assert len(load(replace(spec, downloads=files), folder, download=True).test) == 6
