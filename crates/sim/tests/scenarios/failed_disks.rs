//! Disks of OSTs fail: new files use other OSTs within a second.

use std::time::Duration;

use bytes::Bytes;
use client::{Client, Cred, OpenFile, OpenFlags};
use sim::cluster::Death;
use sim::scenario::{Scenario, play};
use std::sync::Arc;
use tokio::time::{Instant, sleep};
use wire::striping::PlainLayout;
use wire::{Errno, LOV_USER_MAGIC_SPECIFIC, LovOstDataV1};

/// The longest time for which an OST still gets new files after a failure of its disk.
const NOTICE_MAX: Duration = Duration::from_secs(1);

/// The value of an MDT's parameter of the import to OST0000.
fn of_ost0(s: &Scenario, name: &str) -> String {
    let registry = s.cluster.servers[0].node().unwrap().registry().clone();
    let mut found = registry.get(&format!("osp.*OST0000*.{name}"));
    assert_eq!(found.len(), 1, "{name}");
    found.remove(0).1
}

/// Number of files that OST0000 gets of 20 new ones.
async fn files_on_ost0(s: &Scenario, prefix: &str) -> u64 {
    let next = || of_ost0(s, "prealloc_next_id").parse::<u64>().unwrap();
    let before = next();
    for n in 0..20 {
        s.open(0, &format!("{prefix}{n}")).await;
    }
    next() - before
}

/// Creates a file with one stripe on OST0000.
async fn create_on_ost0(s: &Scenario, name: &str) -> Result<Arc<OpenFile>, Errno> {
    let layout = PlainLayout {
        magic: LOV_USER_MAGIC_SPECIFIC,
        objects: vec![LovOstDataV1::default()],
        ..PlainLayout::request(0, 1, Some(0))
    };
    s.on(0, async |mount: Arc<Client>| {
        let (cred, place) = (Cred::root(), (mount.root(), name.as_bytes()));
        let flags = OpenFlags::READ_WRITE;
        let created = mount.create_with(&cred, place, 0o644, flags, layout.build());
        created.await.map(|(_, file)| file)
    })
    .await
}

/// Writes to a file, and waits until the data is on disk.
async fn write(s: &Scenario, file: &Arc<OpenFile>, data: &'static [u8]) -> Result<(), Errno> {
    s.on(0, async |mount: Arc<Client>| {
        mount.write(file, 0, Bytes::from_static(data)).await?;
        mount.fsync(file, false).await
    })
    .await
}

/// Restarts the server of OST0000, and waits until new files use the OST.
async fn restart_ost0(s: &Scenario) {
    let server = &s.cluster.servers[1];
    s.cluster.kill(server, Death::PowerCut).await;
    s.cluster.start(server).await.unwrap();
    let begin = Instant::now();
    // A create may use the OST before the next poll of its statfs clears the reason.
    while files_on_ost0(s, &format!("again{}-", begin.elapsed().as_millis())).await == 0
        || !of_ost0(s, "excluded").is_empty()
    {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "no new files on the OST"
        );
        sleep(Duration::from_millis(500)).await;
    }
}

#[test]
fn ost_whose_store_failed_gets_no_new_files_until_its_restart() {
    play(31, async |s| {
        let kept = create_on_ost0(&s, "kept").await.unwrap();
        write(&s, &kept, b"kept").await.unwrap();
        let late = create_on_ost0(&s, "late").await.unwrap();
        // The MDT does not watch the OSTs while nobody creates files.
        sleep(Duration::from_secs(10)).await;
        let disk = s.cluster.servers[1].disks().next().unwrap();
        disk.set_failing(true);
        assert_eq!(write(&s, &late, b"lost").await, Err(Errno::EIO));
        sleep(NOTICE_MAX).await;
        assert_eq!(files_on_ost0(&s, "without").await, 0);
        assert_eq!(of_ost0(&s, "excluded"), "its store failed and is read-only");
        assert_eq!(create_on_ost0(&s, "chosen").await.err(), Some(Errno::EROFS));
        let read = s.on(1, async |mount| {
            let (cred, root) = (Cred::root(), mount.root());
            let (_, file) = mount
                .create(&cred, root, b"kept", 0o644, OpenFlags::READ_WRITE)
                .await?;
            mount.read(&file, 0, 4).await
        });
        assert_eq!(read.await.unwrap().concat(), b"kept");
        disk.set_failing(false);
        restart_ost0(&s).await;
    });
}

#[test]
fn failure_during_creates_is_noticed_within_a_second() {
    play(32, async |s| {
        let file = create_on_ost0(&s, "file").await.unwrap();
        assert!(files_on_ost0(&s, "before").await > 0);
        let disk = s.cluster.servers[1].disks().next().unwrap();
        disk.set_failing(true);
        assert_eq!(write(&s, &file, b"lost").await, Err(Errno::EIO));
        let begin = Instant::now();
        for round in 0.. {
            let since = begin.elapsed();
            match files_on_ost0(&s, &format!("round{round}-")).await {
                0 => break,
                _ => assert!(since < NOTICE_MAX, "a new file on the OST after {since:?}"),
            }
        }
        disk.set_failing(false);
        restart_ost0(&s).await;
    });
}

#[test]
fn ost_whose_disk_fails_writes_gets_new_files_only_on_request() {
    play(33, async |s| {
        let file = create_on_ost0(&s, "file").await.unwrap();
        let disk = s.cluster.servers[1].disks().next().unwrap();
        disk.set_failing_changes(1000);
        assert_eq!(write(&s, &file, b"lost").await, Err(Errno::EIO));
        disk.set_failing_changes(0);
        sleep(NOTICE_MAX).await;
        assert_eq!(files_on_ost0(&s, "without").await, 0);
        assert_eq!(of_ost0(&s, "excluded"), "its disk has errors");
        // Existing files, and files that must be on this OST, still work.
        let chosen = create_on_ost0(&s, "chosen").await.unwrap();
        write(&s, &chosen, b"kept").await.unwrap();
        restart_ost0(&s).await;
    });
}
