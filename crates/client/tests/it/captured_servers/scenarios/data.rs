//! Data of files.

use crate::captured_servers::play::Play;
use client::{Fallocate, OpenFlags, Seek, SetAttr};
use wire::Errno;

pub async fn create_write_close(play: &Play) {
    let dir = play.fid("dir1").await;
    let file = play.create(dir, "file1").await;
    play.write(&file, 0, b"hello\n").await;
    play.client.write_back(&file).await.unwrap();
    play.client.release(&file).await.unwrap();
}

pub async fn create_64k(play: &Play) {
    let dir = play.fid("dir1").await;
    let file = play.create(dir, "f64k").await;
    play.write(&file, 0, &[b'A'; 65536]).await;
    play.client.write_back(&file).await.unwrap();
    play.client.release(&file).await.unwrap();
}

pub async fn read_back(play: &Play) {
    let file = play.open("dir1/file1", OpenFlags::READ).await;
    assert_eq!(play.read(&file, 100).await, b"hello\n");
    play.client.release(&file).await.unwrap();
}

/// Reads data that an earlier read has cached.
pub async fn read_warm(play: &Play) {
    play.compare(false);
    let file = play.open("dir1/file1", OpenFlags::READ).await;
    assert_eq!(play.read(&file, 100).await, b"hello\n");
    play.client.release(&file).await.unwrap();
    play.compare(true);
    read_back(play).await;
}

pub async fn unlink_open(play: &Play) {
    let dir = play.fid("dir1").await;
    let file = play.create(dir, "openun").await;
    play.write(&file, 0, b"data\n").await;
    play.client.unlink(&play.cred, dir, b"openun").await.unwrap();
    play.client.release(&file).await.unwrap();
}

pub async fn truncate(play: &Play) {
    let write = OpenFlags {
        write: true,
        ..OpenFlags::default()
    };
    for size in [100, 1_000_000] {
        let file = play.open("dir1/f64k", write).await;
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        let attr = play.client.setattr(&play.cred, file.fid, &set, Some(&file)).await;
        assert_eq!(attr.unwrap().attr.size, size);
        play.client.release(&file).await.unwrap();
    }
    let attr = play.walk("dir1/f64k").await.unwrap().attr;
    assert_eq!(attr.size, 1_000_000);
}

/// Writes and reads 64 KiB of `C`, with the capture's checksum type, in a file such as `ck_adler`.
pub async fn checksum(play: &Play) {
    let capture = play.server.state.lock().capture.clone();
    let (_, kind) = capture.split_once("_cksum_").unwrap();
    // The file is on this OST; the other one supports fewer types.
    play.params
        .set("osc.testfs-OST0000*.checksum_type", kind)
        .unwrap();
    write_and_read(play, &format!("ck_{kind}"), &[b'C'; 65536]).await;
}

pub async fn short_io(play: &Play) {
    let data = b"y\n".repeat(2048);
    write_and_read(play, "sio", &data).await;
}

/// Creates an empty file as `lfs setstripe`, writes it as `dd conv=fsync`, then reads it from the
/// server.
async fn write_and_read(play: &Play, name: &str, data: &[u8]) {
    let root = play.client.root();
    let empty = play.create(root, name).await;
    play.client.release(&empty).await.unwrap();
    let file = play.create(root, name).await;
    play.write(&file, 0, data).await;
    play.client.fsync(&file, false).await.unwrap();
    play.client.release(&file).await.unwrap();
    play.forget().await;
    let file = play.open(name, OpenFlags::READ).await;
    assert!(play.read(&file, data.len()).await == data);
    play.client.release(&file).await.unwrap();
}

pub async fn direct_io(play: &Play) {
    let direct = OpenFlags {
        write: true,
        truncate: true,
        direct: true,
        ..OpenFlags::default()
    };
    let root = play.client.root();
    let created = play.client.create(&play.cred, root, b"dio", 0o666, direct).await;
    let (_, file) = created.unwrap();
    play.write(&file, 0, &vec![0; 1 << 20]).await;
    play.client.release(&file).await.unwrap();
    let read = OpenFlags {
        direct: true,
        ..OpenFlags::READ
    };
    let file = play.open("dio", read).await;
    assert_eq!(play.read(&file, 1 << 20).await, vec![0; 1 << 20]);
    play.client.release(&file).await.unwrap();
}

pub async fn fsync(play: &Play) {
    let dir = play.fid("dir1").await;
    let write = OpenFlags {
        write: true,
        ..OpenFlags::default()
    };
    let created = play.client.create(&play.cred, dir, b"fs", 0o666, write).await;
    let (_, file) = created.unwrap();
    play.write(&file, 0, b"12345678").await;
    play.client.fsync(&file, false).await.unwrap();
    play.client.release(&file).await.unwrap();
}

pub async fn umount(play: &Play) {
    let file = play.create(play.client.root(), "lastfile").await;
    play.write(&file, 0, b"last\n").await;
    play.client.release(&file).await.unwrap();
    play.client.umount().await;
}

pub async fn fallocate(play: &Play) {
    let root = play.client.root();
    let flags = OpenFlags::READ_WRITE;
    let created = play.client.create(&play.cred, root, b"fal1", 0o666, flags).await;
    let (_, file) = created.unwrap();
    let all = Fallocate::Allocate { keep_size: false };
    play.client.fallocate(&file, all, 0, 1 << 20).await.unwrap();
    play.client.release(&file).await.unwrap();
    let file = play.open("fal1", flags).await;
    let hole = play
        .client
        .fallocate(&file, Fallocate::PunchHole, 1 << 16, 1 << 16)
        .await;
    hole.unwrap();
    play.client.release(&file).await.unwrap();
    let file = play.open("fal1", OpenFlags::READ).await;
    // The allocated space has no data.
    assert_eq!(play.client.seek(&file, Seek::Data, 0).await, Err(Errno::ENXIO));
    play.client.release(&file).await.unwrap();
    let attr = play.walk("fal1").await.unwrap().attr;
    assert_eq!((attr.size, attr.blocks), (1 << 20, 1920));
}
