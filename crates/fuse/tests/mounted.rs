//! A file system in one process, mounted once or twice and used through the kernel.
//!
//! Needs /dev/fuse and permission to mount; otherwise the tests fail.

#![allow(clippy::unwrap_used)]

use fuse::{FuseMount, FuseOptions};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use testkit::{Cluster, FSNAME};

/// A cluster and its mounts, each with its own client.
struct Mounts {
    cluster: Cluster,
    clients: Vec<Arc<client::Client>>,
    mounts: Vec<FuseMount>,
    _dirs: Vec<tempfile::TempDir>,
}

impl Mounts {
    async fn start(osts: u32, count: usize) -> Mounts {
        Mounts::start_with(osts, count, true).await
    }

    async fn start_with(osts: u32, count: usize, direct_io: bool) -> Mounts {
        if let Err(e) = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            panic!("/dev/fuse cannot be opened, so nothing can be mounted: {e}");
        }
        let cluster = Cluster::start(osts).await;
        let mut all = Mounts {
            cluster,
            clients: Vec::new(),
            mounts: Vec::new(),
            _dirs: Vec::new(),
        };
        for _ in 0..count {
            let (client, dir) = (all.cluster.mount().await, tempfile::tempdir().unwrap());
            let opts = FuseOptions {
                direct_io,
                ..FuseOptions::new(format!("0@lo:/{FSNAME}"))
            };
            all.mounts
                .push(fuse::mount(client.clone(), dir.path(), opts).await.unwrap());
            all.clients.push(client);
            all._dirs.push(dir);
        }
        all
    }

    /// Runs `f` with the mount points of the first and the second mount; a single mount is both.
    async fn run<T: Send + 'static>(&self, f: impl FnOnce(PathBuf, PathBuf) -> T + Send + 'static) -> T {
        let path = |i: usize| self.mounts[i.min(self.mounts.len() - 1)].path().to_owned();
        let (a, b) = (path(0), path(1));
        tokio::task::spawn_blocking(move || f(a, b)).await.unwrap()
    }

    async fn stop(self) {
        for m in &self.mounts {
            m.unmount(false).await.unwrap();
        }
        for c in &self.clients {
            c.umount().await;
        }
        self.cluster.stop().await;
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_written_through_one_mount_are_read_through_the_other() {
    for direct_io in [true, false] {
        check_writes_are_visible_on_other_mount(Mounts::start_with(2, 2, direct_io).await).await;
    }
}

async fn check_writes_are_visible_on_other_mount(m: Mounts) {
    m.run(|a, b| {
        fs::create_dir(a.join("d")).unwrap();
        fs::write(a.join("d/f"), b"hello").unwrap();
        assert_eq!(fs::read(b.join("d/f")).unwrap(), b"hello");
        fs::write(b.join("d/f"), b"hello, world").unwrap();
        assert_eq!(fs::read(a.join("d/f")).unwrap(), b"hello, world");
        assert_eq!(fs::metadata(a.join("d/f")).unwrap().len(), 12);
        fs::remove_file(a.join("d/f")).unwrap();
        assert!(!b.join("d/f").exists());
        assert_eq!(names(&b.join("d")), Vec::<String>::new());
        fs::remove_dir(b.join("d")).unwrap();
    })
    .await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_writes_to_a_large_file_are_read_back_on_both_mounts() {
    for direct_io in [true, false] {
        random_writes(Mounts::start_with(2, 2, direct_io).await).await;
    }
}

/// Asserts equality; the message has the first and last different byte.
fn assert_same(read: &[u8], expected: &[u8], what: &str) {
    assert_eq!(read.len(), expected.len(), "{what}");
    let differs = |i: &usize| read[*i] != expected[*i];
    if let Some(first) = (0..read.len()).find(differs) {
        let last = (0..read.len()).rfind(differs).unwrap_or(first);
        panic!(
            "{what}: differs from byte {first} to {last}: read {:?}",
            &read[first..(first + 16).min(last + 1)]
        );
    }
}

async fn random_writes(m: Mounts) {
    m.run(|a, b| {
        let (f, mut model) = (fs::File::create(a.join("big")).unwrap(), vec![0u8; 9 << 20]);
        let mut random = fastrand::Rng::with_seed(12345);
        for _ in 0..200 {
            let (at, len, salt) = (random.usize(..8 << 20), random.usize(1..=100_000), random.u8(..));
            let piece: Vec<u8> = (0..len).map(|i| salt ^ i as u8).collect();
            f.write_all_at(&piece, at as u64).unwrap();
            model[at..at + len].copy_from_slice(&piece);
        }
        f.set_len(9 << 20).unwrap();
        drop(f);
        assert_same(
            &fs::read(b.join("big")).unwrap(),
            &model,
            "the other mount reads the written data",
        );
        assert_same(
            &fs::read(a.join("big")).unwrap(),
            &model,
            "the writing mount reads its data",
        );
    })
    .await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_links_modes_and_times_follow_posix() {
    let m = Mounts::start(1, 2).await;
    m.run(|a, b| {
        fs::write(a.join("f"), b"x").unwrap();
        fs::hard_link(a.join("f"), a.join("g")).unwrap();
        assert_eq!(fs::metadata(b.join("g")).unwrap().nlink(), 2);
        symlink("f", a.join("s")).unwrap();
        assert_eq!(fs::read_link(b.join("s")).unwrap(), PathBuf::from("f"));
        assert_eq!(fs::read(b.join("s")).unwrap(), b"x");
        fs::set_permissions(a.join("f"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(b.join("g")).unwrap().mode() & 0o7777, 0o640);
        let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        fs::File::options()
            .write(true)
            .open(a.join("f"))
            .unwrap()
            .set_modified(then)
            .unwrap();
        assert_eq!(fs::metadata(b.join("f")).unwrap().mtime(), 1_000_000_000);
        fs::rename(a.join("f"), a.join("h")).unwrap();
        assert_eq!(names(&b), ["g", "h", "s"]);
        fs::rename(b.join("h"), b.join("g")).unwrap();
        assert_eq!(
            fs::metadata(a.join("g")).unwrap().ino(),
            fs::metadata(b.join("g")).unwrap().ino()
        );
    })
    .await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_file_outlives_its_name() {
    let m = Mounts::start(1, 2).await;
    m.run(|a, b| {
        fs::write(a.join("f"), b"still here").unwrap();
        let f = fs::File::open(a.join("f")).unwrap();
        fs::remove_file(b.join("f")).unwrap();
        assert!(!a.join("f").exists());
        let mut buf = [0; 10];
        f.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(&buf, b"still here");
    })
    .await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_two_mounts_do_not_overwrite_each_other() {
    let m = Mounts::start(1, 2).await;
    m.run(|a, b| {
        let append = |p: PathBuf, text: &'static str| {
            std::thread::spawn(move || {
                use std::io::Write;
                let mut f = fs::File::options().append(true).create(true).open(p).unwrap();
                for _ in 0..50 {
                    f.write_all(text.as_bytes()).unwrap();
                }
            })
        };
        let (x, y) = (append(a.join("log"), "aaaa\n"), append(b.join("log"), "bbbb\n"));
        x.join().unwrap();
        y.join().unwrap();
        let text = fs::read_to_string(a.join("log")).unwrap();
        assert_eq!(text.lines().filter(|l| *l == "aaaa").count(), 50);
        assert_eq!(text.lines().filter(|l| *l == "bbbb").count(), 50);
    })
    .await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_in_use_rejects_another_mount_and_an_unmount() {
    let m = Mounts::start(0, 1).await;
    let client = m.cluster.mount().await;
    let again = fuse::mount(client.clone(), m.mounts[0].path(), FuseOptions::new("x")).await;
    assert!(matches!(again, Err(fuse::FuseError::AlreadyMounted { .. })));
    let open = fs::File::open(m.mounts[0].path()).unwrap();
    assert!(matches!(
        m.mounts[0].unmount(false).await,
        Err(fuse::FuseError::InUse { .. })
    ));
    drop(open);
    client.umount().await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_file_sees_appends_and_truncates_of_another_mount_at_once() {
    let m = Mounts::start(2, 2).await;
    m.run(|a, b| {
        for round in 0..60usize {
            let (a, b) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
            let data = vec![round as u8; 1 + round * 9973];
            fs::write(a.join("f"), &data).unwrap();
            assert_eq!(fs::metadata(b.join("f")).unwrap().len(), data.len() as u64);
            assert!(fs::read(b.join("f")).unwrap() == data, "round {round}");

            let reader = fs::File::open(b.join("f")).unwrap();
            let mut writer = fs::File::options().append(true).open(a.join("f")).unwrap();
            let mut more = [0; 100];
            for add in 0..5 {
                writer.write_all(b"and more").unwrap();
                let at = data.len() as u64 + 8 * add;
                assert_eq!(
                    reader.read_at(&mut more, at).unwrap(),
                    8,
                    "round {round}, append {add}"
                );
                assert_eq!(&more[..8], b"and more");
            }
            writer.set_len(7).unwrap();
            assert_eq!(
                reader.read_at(&mut more, 6).unwrap(),
                data.len().min(1),
                "round {round}"
            );
            assert_eq!(reader.read_at(&mut more, 7).unwrap(), 0, "round {round}");
        }
    })
    .await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abort_fails_all_waiting_requests() {
    let m = Mounts::start(1, 1).await;
    m.run(|a, _| {
        let open = || fs::File::create(a.join("f")).unwrap();
        let (holder, waiter) = (open(), open());
        holder.lock().unwrap();
        let waiting = std::thread::Builder::new().name("waits".into());
        let waiting = waiting.spawn(move || waiter.lock()).unwrap();
        let is_blocked = || {
            let all = fs::read_dir("/proc/self/task").unwrap().flatten();
            let read = |dir: &Path, file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
            all.map(|task| task.path())
                .any(|task| read(&task, "comm") == "waits\n" && read(&task, "wchan") == "request_wait_answer")
        };
        while !waiting.is_finished() && !is_blocked() {
            std::thread::yield_now();
        }
        assert!(!waiting.is_finished(), "{:?}", waiting.join());
        fuse::abort(&a).unwrap();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted);
        assert_eq!(fuse::mounted_at(&a), None);
    })
    .await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_for_reading_with_o_trunc_truncates_on_all_mounts() {
    let m = Mounts::start(1, 2).await;
    m.run(|a, b| {
        fs::write(a.join("f"), "contents").unwrap();
        let mut truncating = fs::File::options();
        truncating.read(true).custom_flags(libc::O_TRUNC);
        drop(truncating.open(a.join("f")).unwrap());
        for mount in [a, b] {
            assert_eq!(fs::read(mount.join("f")).unwrap(), b"");
        }
    })
    .await;
    m.stop().await;
}

/// Linux lets the file system truncate a file on O_TRUNC before it checks whether the file is being
/// executed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_with_o_trunc_fails_while_the_file_is_executed() {
    let m = Mounts::start(1, 2).await;
    m.run(|a, b| {
        let (program, size) = (
            a.join("sleep"),
            fs::copy("/usr/bin/sleep", a.join("sleep")).unwrap(),
        );
        let mut child = std::process::Command::new(&program).arg("600").spawn().unwrap();
        for mount in [a, b] {
            let mut truncating = fs::File::options();
            truncating.read(true).custom_flags(libc::O_TRUNC);
            let error = truncating.open(mount.join("sleep")).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ExecutableFileBusy);
            assert_eq!(fs::metadata(mount.join("sleep")).unwrap().len(), size);
        }
        assert_eq!(child.try_wait().unwrap(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    })
    .await;
    m.stop().await;
}

/// A user may unmount lazily, and mount another file system at the same path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_mount_at_the_path_outlives_a_lazily_unmounted_one() {
    for unmount_first in [true, false] {
        let mut m = Mounts::start(1, 1).await;
        let path = m.mounts[0].path().to_owned();
        let open = m.run(|a, _| fs::File::create(a.join("f")).unwrap()).await;
        fuse::unmount(&path, true).unwrap();
        let client = m.cluster.mount().await;
        let other = fuse::mount(client.clone(), &path, FuseOptions::new("other")).await;
        if unmount_first {
            m.mounts[0].unmount(true).await.unwrap();
        }
        drop(m.mounts.remove(0));
        assert_eq!(fuse::mounted_at(&path).unwrap().source, "other");
        other.unwrap().unmount(false).await.unwrap();
        assert_eq!(fuse::mounted_at(&path), None);
        drop(open);
        client.umount().await;
        m.stop().await;
    }
}
