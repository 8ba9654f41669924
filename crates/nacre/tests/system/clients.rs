//! Several clients of one file system: each sees the others' changes immediately, and concurrent
//! writes are not lost.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use cpt::{CptConfig, CptTable};
use fuse::{FuseMount, FuseOptions};
use lnet::{Lnet, LnetConfig};
use node::{Node, NodeConfig, RandomSource};

use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::sh;
use crate::sqlite::{finish, sqlite, transfers};

/// Runs all checks of this module on two mounts of one file system.
pub(crate) fn check_coherence(a: &Path, b: &Path) {
    metadata_is_coherent(a, b);
    data_is_coherent(a, b);
    concurrent_creates_in_a_directory(a, b);
    concurrent_appends(a, b);
    concurrent_writes_to_shared_pages(a, b);
    unlinked_file_stays_readable(a, b);
    flock_excludes_the_other_mount(a, b);
    concurrent_database_writers(a, b);
}

fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

fn metadata_is_coherent(a: &Path, b: &Path) {
    for round in 0..30 {
        // In each round, the other mount makes the changes.
        let (a, b) = if round % 2 == 0 { (a, b) } else { (b, a) };
        fs::create_dir(a.join("dir")).unwrap();
        assert_eq!(names(&b.join("dir")), [""; 0]);
        fs::write(a.join("dir/one"), "").unwrap();
        assert_eq!(names(&b.join("dir")), ["one"]);
        assert_eq!(fs::metadata(b.join("dir/one")).unwrap().len(), 0);
        fs::set_permissions(a.join("dir/one"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(b.join("dir/one")).unwrap().mode() & 0o7777, 0o640);
        std::os::unix::fs::chown(b.join("dir/one"), Some(12), Some(34)).unwrap();
        let meta = fs::metadata(a.join("dir/one")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (12, 34));
        fs::hard_link(b.join("dir/one"), b.join("dir/two")).unwrap();
        assert_eq!(fs::metadata(a.join("dir/one")).unwrap().nlink(), 2);
        fs::rename(a.join("dir/two"), a.join("three")).unwrap();
        assert!(!b.join("dir/two").exists());
        assert_eq!(names(&b.join("dir")), ["one"]);
        assert_eq!(
            fs::metadata(b.join("three")).unwrap().ino(),
            fs::metadata(a.join("dir/one")).unwrap().ino()
        );
        symlink("dir/one", b.join("link")).unwrap();
        assert_eq!(fs::read_link(a.join("link")).unwrap(), Path::new("dir/one"));
        File::options()
            .write(true)
            .open(a.join("three"))
            .unwrap()
            .set_len(5000)
            .unwrap();
        assert_eq!(fs::metadata(b.join("link")).unwrap().len(), 5000);
        fs::remove_file(b.join("dir/one")).unwrap();
        assert!(!a.join("dir/one").exists());
        fs::remove_dir(a.join("dir")).unwrap();
        assert!(fs::metadata(b.join("dir")).is_err());
        fs::remove_file(a.join("three")).unwrap();
        fs::remove_file(a.join("link")).unwrap();
        assert_eq!(names(b), [""; 0]);
    }
}

fn data_is_coherent(a: &Path, b: &Path) {
    for round in 0..30usize {
        let (a, b) = if round % 2 == 0 { (a, b) } else { (b, a) };
        let data = vec![round as u8; 1 + round * 9973];
        fs::write(a.join("file"), &data).unwrap();
        assert_eq!(fs::metadata(b.join("file")).unwrap().len(), data.len() as u64);
        assert!(fs::read(b.join("file")).unwrap() == data, "round {round}");

        let mut reader = File::open(b.join("file")).unwrap();
        let mut writer = OpenOptions::new().append(true).open(a.join("file")).unwrap();
        writer.write_all(b"and more").unwrap();
        reader.seek(SeekFrom::Start(data.len() as u64)).unwrap();
        let mut more = String::new();
        reader.read_to_string(&mut more).unwrap();
        assert_eq!(more, "and more");
        drop((reader, writer));

        // After a truncation, the old data must not reappear.
        let shorter = OpenOptions::new().write(true).open(b.join("file")).unwrap();
        shorter.set_len(1).unwrap();
        shorter.set_len(4).unwrap();
        assert_eq!(fs::read(a.join("file")).unwrap(), [round as u8, 0, 0, 0][..]);
        if round % 3 == 0 {
            fs::remove_file(b.join("file")).unwrap();
        }
    }
    fs::remove_file(a.join("file")).unwrap();
}

fn concurrent_creates_in_a_directory(a: &Path, b: &Path) {
    fs::create_dir(a.join("full")).unwrap();
    let fill = |mount: &Path, writer: &str| {
        for i in 0..150 {
            fs::write(mount.join(format!("full/{writer}{i:03}")), format!("{writer}{i}")).unwrap();
            if i % 5 == 0 {
                fs::remove_file(mount.join(format!("full/{writer}{i:03}"))).unwrap();
            }
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| fill(a, "a"));
        s.spawn(|| fill(b, "b"));
    });
    let expected = names(&a.join("full"));
    assert_eq!(expected.len(), 240);
    assert_eq!(names(&b.join("full")), expected);
    for name in &expected {
        assert_eq!(
            fs::read(a.join("full").join(name)).unwrap(),
            fs::read(b.join("full").join(name)).unwrap()
        );
    }
    fs::remove_dir_all(b.join("full")).unwrap();
    assert!(!a.join("full").exists());
}

fn concurrent_appends(a: &Path, b: &Path) {
    const LINES: usize = 200;
    let append = |mount: &Path, writer: char| {
        let mut log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(mount.join("log"))
            .unwrap();
        for i in 0..LINES {
            log.write_all(format!("{writer} {i:05} {}\n", "x".repeat(i)).as_bytes())
                .unwrap();
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| append(a, 'a'));
        s.spawn(|| append(b, 'b'));
    });
    let log = fs::read_to_string(b.join("log")).unwrap();
    for writer in ['a', 'b'] {
        let own = log.lines().filter(|line| line.starts_with(writer));
        for (i, line) in own.clone().enumerate() {
            assert_eq!(line, format!("{writer} {i:05} {}", "x".repeat(i)));
        }
        assert_eq!(own.count(), LINES);
    }
    assert_eq!(log, fs::read_to_string(a.join("log")).unwrap());
    fs::remove_file(a.join("log")).unwrap();
}

/// The size of pieces is not a multiple of a page, so both mounts write into the same pages.
fn concurrent_writes_to_shared_pages(a: &Path, b: &Path) {
    const PIECE: u64 = 1000;
    const PIECES: u64 = 400;
    File::create(a.join("shared")).unwrap();
    let write = |mount: &Path, parity: u64| {
        use std::os::unix::fs::FileExt;
        let file = OpenOptions::new().write(true).open(mount.join("shared")).unwrap();
        for piece in (0..PIECES).filter(|p| p % 2 == parity) {
            file.write_all_at(&[piece as u8; PIECE as usize], piece * PIECE)
                .unwrap();
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| write(a, 0));
        s.spawn(|| write(b, 1));
    });
    for mount in [a, b] {
        let data = fs::read(mount.join("shared")).unwrap();
        assert_eq!(data.len() as u64, PIECE * PIECES);
        for (i, piece) in data.chunks(PIECE as usize).enumerate() {
            assert!(piece.iter().all(|&byte| byte == i as u8), "piece {i}");
        }
    }
    fs::remove_file(b.join("shared")).unwrap();
}

fn unlinked_file_stays_readable(a: &Path, b: &Path) {
    fs::write(a.join("gone"), "still here").unwrap();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(a.join("gone"))
        .unwrap();
    fs::remove_file(b.join("gone")).unwrap();
    assert!(fs::metadata(a.join("gone")).is_err());
    let mut data = String::new();
    file.read_to_string(&mut data).unwrap();
    assert_eq!(data, "still here");
    file.write_all(b", and more").unwrap();
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    data.clear();
    file.read_to_string(&mut data).unwrap();
    assert_eq!(data, "still here, and more");
    fs::write(b.join("gone"), "another").unwrap();
    assert_eq!(fs::read_to_string(a.join("gone")).unwrap(), "another");
    fs::remove_file(a.join("gone")).unwrap();
}

/// Shells on both mounts increment a counter under `flock`.
fn flock_excludes_the_other_mount(a: &Path, b: &Path) {
    const TIMES: usize = 30;
    fs::write(a.join("counter"), "0").unwrap();
    let count = |mount: &Path| {
        let at = text(mount);
        sh(&format!(
            "cd {at}; for i in $(seq {TIMES}); do flock lock bash -c 'n=$(<counter); echo $((n + 1)) > counter'; done"
        ));
    };
    std::thread::scope(|s| {
        s.spawn(|| count(a));
        s.spawn(|| count(b));
    });
    assert_eq!(
        fs::read_to_string(b.join("counter")).unwrap(),
        format!("{}\n", 2 * TIMES)
    );
    fs::remove_file(a.join("counter")).unwrap();
    fs::remove_file(a.join("lock")).unwrap();
}

/// Uses a rollback journal, which needs correct locks and data. A write-ahead log would need shared
/// memory, which clients on different machines do not have.
fn concurrent_database_writers(a: &Path, b: &Path) {
    let db = |mount: &Path| text(&mount.join("db")).to_owned();
    finish(sqlite(
        &db(a),
        "create table moves(who text, i integer, amount integer);",
    ));
    let writers = [sqlite(&db(a), &transfers("a")), sqlite(&db(b), &transfers("b"))];
    let queries = "pragma integrity_check; select sum(amount) from moves;";
    assert_eq!(finish(sqlite(&db(b), queries)).lines().next(), Some("ok"));
    writers
        .into_iter()
        .for_each(|writer| assert_eq!(finish(writer), ""));
    for mount in [a, b] {
        let queries = format!("{queries} select count(distinct who), count(distinct i) from moves;");
        assert_eq!(finish(sqlite(&db(mount), &queries)), "ok\n0\n2|60\n");
    }
    fs::remove_file(a.join("db")).unwrap();
}

#[test]
fn two_clients_in_separate_processes_are_coherent() {
    let mut fs = FileSystem::new(Shape::FourProcesses);
    let other = fs.add_mount("other", 5);
    check_coherence(&fs.mount_point(), &other);
    crate::fixture::nacre_ok(&["umount", text(&other)]);
    fs.stop();
}

#[test]
fn client_in_the_server_process_and_another_are_coherent() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let other = fs.add_mount("other", 5);
    check_coherence(&fs.mount_point(), &other);
    crate::fixture::nacre_ok(&["umount", text(&other)]);
    fs.stop();
}

/// Mounts the file system in this test's process.
async fn mount(node: &Node, fs: &FileSystem, at: &Path) -> FuseMount {
    fs::create_dir(at).unwrap();
    let mgs = fs.addresses.nid(1).parse().unwrap();
    let options = node.mount_options(vec![mgs], "lus").unwrap();
    let client = node.mount(options).await.unwrap();
    fuse::mount(client, at, FuseOptions::new(fs.addresses.source()))
        .await
        .unwrap()
}

#[test]
fn several_mounts_in_one_process_are_coherent() {
    let fs = FileSystem::new(Shape::OneProcess);
    let cpts = CptTable::build(&CptConfig::default()).unwrap();
    let runtime = cpts.iter().next().unwrap().handle().tokio().clone();
    let paths = ["one", "two", "three"].map(|name| fs.site.path(name));
    let (node, mounts) = runtime.block_on(async {
        let config = LnetConfig {
            accept_port: fs.addresses.port.parse().unwrap(),
            ..LnetConfig::default()
        };
        let lnet = Lnet::new(cpts.clone(), config);
        lnet.add_tcp(fs.addresses.nid(6).parse().unwrap(), true)
            .await
            .unwrap();
        let node = Node::start(lnet, NodeConfig::new(RandomSource::seeded(6))).unwrap();
        let mut mounts = Vec::new();
        for path in &paths {
            mounts.push(mount(&node, &fs, path).await);
        }
        (node, mounts)
    });
    check_coherence(&paths[0], &paths[1]);
    check_coherence(&paths[2], &fs.mount_point());
    runtime.block_on(async {
        for fuse_mount in mounts {
            fuse_mount.unmount(false).await.unwrap();
        }
        node.stop().await.unwrap();
    });
    cpts.shutdown();
    fs.stop();
}
