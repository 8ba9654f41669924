//! Scenarios with data of files.

use crate::captured_servers::scenario_run::ScenarioRun;
use client::{Fallocate, FileLayout, OpenFlags, Seek, SetAttr};
use wire::striping::{CompositeLayout, LovLayout, PlainLayout};
use wire::{Errno, LOV_MAGIC_COMP_V1, LovCompMdEntryV1, LovCompMdV1, LuExtent};

pub async fn create_write_close(run: &ScenarioRun) {
    let dir = run.fid("dir1").await;
    let file = run.create(dir, "file1").await;
    run.write(&file, 0, b"hello\n").await;
    run.client.write_back(&file).await.unwrap();
    run.client.release(&file).await.unwrap();
}

pub async fn create_64k(run: &ScenarioRun) {
    let dir = run.fid("dir1").await;
    let file = run.create(dir, "f64k").await;
    run.write(&file, 0, &[b'A'; 65536]).await;
    run.client.write_back(&file).await.unwrap();
    run.client.release(&file).await.unwrap();
}

pub async fn read_back(run: &ScenarioRun) {
    let file = run.open("dir1/file1", OpenFlags::READ).await;
    assert_eq!(run.read(&file, 100).await, b"hello\n");
    run.client.release(&file).await.unwrap();
}

/// Reads data that an earlier read has cached.
pub async fn read_warm(run: &ScenarioRun) {
    run.set_comparing(false);
    let file = run.open("dir1/file1", OpenFlags::READ).await;
    assert_eq!(run.read(&file, 100).await, b"hello\n");
    run.client.release(&file).await.unwrap();
    run.set_comparing(true);
    read_back(run).await;
}

pub async fn unlink_open(run: &ScenarioRun) {
    let dir = run.fid("dir1").await;
    let file = run.create(dir, "openun").await;
    run.write(&file, 0, b"data\n").await;
    run.client.unlink(&run.cred, dir, b"openun").await.unwrap();
    run.client.release(&file).await.unwrap();
}

pub async fn truncate(run: &ScenarioRun) {
    let write = OpenFlags {
        write: true,
        ..OpenFlags::default()
    };
    for size in [100, 1_000_000] {
        let file = run.open("dir1/f64k", write).await;
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        let attr = run.client.setattr(&run.cred, file.fid, &set, Some(&file)).await;
        assert_eq!(attr.unwrap().attr.size, size);
        run.client.release(&file).await.unwrap();
    }
    let attr = run.walk("dir1/f64k").await.unwrap().attr;
    assert_eq!(attr.size, 1_000_000);
}

/// Writes and reads 64 KiB of `C`, with the capture's checksum type, in a file such as `ck_adler`.
pub async fn checksum(run: &ScenarioRun) {
    let capture = run.server.state.lock().capture.clone();
    let (_, kind) = capture.split_once("_cksum_").unwrap();
    // The file is on this OST; the other one supports fewer types.
    run.params.set("osc.testfs-OST0000*.checksum_type", kind).unwrap();
    write_and_read(run, &format!("ck_{kind}"), &[b'C'; 65536]).await;
}

pub async fn short_io(run: &ScenarioRun) {
    let data = b"y\n".repeat(2048);
    write_and_read(run, "sio", &data).await;
}

/// Creates an empty file like `lfs setstripe`, writes it like `dd conv=fsync`, then reads it from
/// the server.
async fn write_and_read(run: &ScenarioRun, name: &str, data: &[u8]) {
    let root = run.client.root();
    let empty = run.create(root, name).await;
    run.client.release(&empty).await.unwrap();
    let file = run.create(root, name).await;
    run.write(&file, 0, data).await;
    run.client.fsync(&file, false).await.unwrap();
    run.client.release(&file).await.unwrap();
    run.drop_caches().await;
    let file = run.open(name, OpenFlags::READ).await;
    assert!(run.read(&file, data.len()).await == data);
    run.client.release(&file).await.unwrap();
}

pub async fn direct_io(run: &ScenarioRun) {
    let direct = OpenFlags {
        write: true,
        truncate: true,
        direct: true,
        ..OpenFlags::default()
    };
    let root = run.client.root();
    let created = run.client.create(&run.cred, root, b"dio", 0o666, direct).await;
    let (_, file) = created.unwrap();
    run.write(&file, 0, &vec![0; 1 << 20]).await;
    run.client.release(&file).await.unwrap();
    let read = OpenFlags {
        direct: true,
        ..OpenFlags::READ
    };
    let file = run.open("dio", read).await;
    assert_eq!(run.read(&file, 1 << 20).await, vec![0; 1 << 20]);
    run.client.release(&file).await.unwrap();
}

pub async fn fsync(run: &ScenarioRun) {
    let dir = run.fid("dir1").await;
    let write = OpenFlags {
        write: true,
        ..OpenFlags::default()
    };
    let created = run.client.create(&run.cred, dir, b"fs", 0o666, write).await;
    let (_, file) = created.unwrap();
    run.write(&file, 0, b"12345678").await;
    run.client.fsync(&file, false).await.unwrap();
    run.client.release(&file).await.unwrap();
}

pub async fn umount(run: &ScenarioRun) {
    let file = run.create(run.client.root(), "lastfile").await;
    run.write(&file, 0, b"last\n").await;
    run.client.release(&file).await.unwrap();
    run.client.umount().await;
}

/// Writes to both components of `lfs setstripe -E 1M -c 1 -E -1 -c 2`. The server creates the
/// objects of the second one when the client is about to write there.
pub async fn progressive_layout(run: &ScenarioRun) {
    let component = |start, end, stripe_count| {
        let entry = LovCompMdEntryV1 {
            lcme_extent: LuExtent {
                e_start: start,
                e_end: end,
            },
            ..Default::default()
        };
        (entry, PlainLayout::request(0, stripe_count, None))
    };
    let request = CompositeLayout {
        head: LovCompMdV1 {
            lcm_magic: LOV_MAGIC_COMP_V1,
            ..Default::default()
        },
        components: vec![component(0, 1 << 20, 1), component(1 << 20, u64::MAX, 2)],
    };
    let root = run.client.root();
    let file = run.create(root, "pfl1").await;
    let layout = LovLayout::Composite(request).build();
    run.client.setstripe(&run.cred, file.fid, layout).await.unwrap();
    run.client.release(&file).await.unwrap();
    let objects = async || {
        let layout = run.client.getstripe(&run.cred, file.fid).await.unwrap();
        FileLayout::parse(layout).unwrap().count()
    };

    let first = run.create(root, "pfl1").await;
    run.write(&first, 0, &[0; 65536]).await;
    run.client.fsync(&first, false).await.unwrap();
    run.client.release(&first).await.unwrap();
    assert_eq!(objects().await, 1);
    let write = OpenFlags {
        write: true,
        ..OpenFlags::default()
    };
    let second = run.open("pfl1", write).await;
    run.write(&second, 2 << 20, &[0; 65536]).await;
    run.client.fsync(&second, false).await.unwrap();
    run.client.release(&second).await.unwrap();
    assert_eq!(objects().await, 3);
}

pub async fn fallocate(run: &ScenarioRun) {
    let root = run.client.root();
    let flags = OpenFlags::READ_WRITE;
    let created = run.client.create(&run.cred, root, b"fal1", 0o666, flags).await;
    let (_, file) = created.unwrap();
    let all = Fallocate::Allocate { keep_size: false };
    run.client.fallocate(&file, all, 0, 1 << 20).await.unwrap();
    run.client.release(&file).await.unwrap();
    let file = run.open("fal1", flags).await;
    let hole = run
        .client
        .fallocate(&file, Fallocate::PunchHole, 1 << 16, 1 << 16)
        .await;
    hole.unwrap();
    run.client.release(&file).await.unwrap();
    let file = run.open("fal1", OpenFlags::READ).await;
    // The allocated space has no data.
    assert_eq!(run.client.seek(&file, Seek::Data, 0).await, Err(Errno::ENXIO));
    run.client.release(&file).await.unwrap();
    let attr = run.walk("fal1").await.unwrap().attr;
    assert_eq!((attr.size, attr.blocks), (1 << 20, 1920));
}
