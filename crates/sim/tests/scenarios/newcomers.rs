//! A client that mounts while a server recovers and one of its clients is missing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, Cred, OpenFlags, SetAttr};
use sim::cluster::Death;
use sim::run::CLIENTS;
use sim::scenario::{Scenario, play};
use tokio::time::{Instant, sleep, timeout};
use wire::{Errno, Fid};

/// The index of the new client.
const NEW: usize = CLIENTS as usize;
/// The limit of calls that wait for nobody.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The time for which the client is missing; the server waits longer.
const MISSING: Duration = Duration::from_secs(6);

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

async fn mkdir(mount: &Client, dir: Fid, name: &str) -> Fid {
    let made = mount.mkdir(&Cred::root(), dir, name.as_bytes(), 0o755).await;
    made.unwrap().attr.fid
}

async fn find(mount: &Client, dir: Fid, name: &str) -> Result<Fid, Errno> {
    let found = mount.lookup(&Cred::root(), dir, name.as_bytes()).await;
    found.map(|found| found.attr.fid)
}

/// Writes a file, closes it and syncs it.
async fn write_file(mount: &Client, dir: Fid, name: &str, data: Bytes) -> Fid {
    let (cred, flags) = (Cred::root(), OpenFlags::READ_WRITE);
    let (found, file) = mount
        .create(&cred, dir, name.as_bytes(), 0o644, flags)
        .await
        .unwrap();
    mount.write(&file, 0, data).await.unwrap();
    mount.fsync(&file, false).await.unwrap();
    mount.release(&file).await.unwrap();
    found.attr.fid
}

async fn read_file(mount: &Client, file: Fid) -> Vec<u8> {
    let file = mount.open(&Cred::root(), file, OpenFlags::READ).await.unwrap();
    let data = mount.read(&file, 0, 4096).await.unwrap().concat();
    mount.release(&file).await.unwrap();
    data
}

/// The directories `busy`, `quiet` and `seen`, which a client makes that then leaves no trace; each
/// has a file with its name as data.
async fn make_dirs(s: &Scenario) -> [(Fid, Fid); 3] {
    let dirs = s.on(3, async |mount| {
        let root = mount.root();
        let mut dirs = Vec::new();
        for name in ["busy", "quiet", "seen"] {
            let dir = mkdir(&mount, root, name).await;
            dirs.push((dir, write_file(&mount, dir, "file", text(name)).await));
        }
        mount.fsyncdir(root).await.unwrap();
        dirs
    });
    let dirs = dirs.await.try_into().unwrap();
    s.cluster.stop(s.host(3)).await.unwrap();
    dirs
}

/// Mounts the new client, and returns its mount and the time of its mount.
async fn mount(s: &Scenario) -> Arc<Client> {
    let begin = Instant::now();
    s.mount_newcomer().await;
    assert!(begin.elapsed() < AT_ONCE, "mounted after {:?}", begin.elapsed());
    s.host(NEW).client().unwrap()
}

async fn at_once<T>(s: &Scenario, what: &str, call: impl AsyncFnOnce(Arc<Client>) -> T) -> T {
    let done = timeout(AT_ONCE, s.on(NEW, call)).await;
    done.unwrap_or_else(|_| panic!("the new client waits: {what}"))
}

/// The new client's call waits until the client 0 is back.
async fn waits<T>(s: &Scenario, what: &str, call: impl AsyncFnOnce(Arc<Client>) -> T) -> T {
    let begin = Instant::now();
    let done = s.on(NEW, call).await;
    assert!(begin.elapsed() > AT_ONCE, "the new client does not wait: {what}");
    done
}

#[test]
fn a_new_client_works_where_a_missing_client_of_an_mdt_left_nothing() {
    for death in [Death::Process, Death::PowerCut] {
        play(11, async move |s| {
            let [(busy, _), (quiet, quiet_file), (seen, _)] = make_dirs(&s).await;
            // The changes of client 0 are not on disk when the server loses power.
            let open = s.on(0, async |mount| {
                let root = mount.root();
                assert_eq!(find(&mount, root, "busy").await, Ok(busy));
                assert_eq!(find(&mount, root, "seen").await, Ok(seen));
                let (cred, flags) = (Cred::root(), OpenFlags::READ_WRITE);
                let (_, file) = mount.create(&cred, busy, b"new", 0o600, flags).await.unwrap();
                mount.unlink(&cred, busy, b"file").await.unwrap();
                file
            });
            let open = open.await;
            s.isolate(0, true);
            s.restart(0, death).await;
            mount(&s).await;
            at_once(&s, "look up", async |mount| {
                let root = mount.root();
                assert_eq!(find(&mount, root, "quiet").await, Ok(quiet));
                assert_eq!(read_file(&mount, quiet_file).await, b"quiet");
                assert_eq!(find(&mount, quiet, "missing").await, Err(Errno::ENOENT));
                assert_eq!(find(&mount, root, "seen").await, Ok(seen));
                assert_eq!(find(&mount, seen, "missing").await, Err(Errno::ENOENT));
                mkdir(&mount, root, "other").await;
            })
            .await;
            at_once(&s, "change", async |mount| {
                let own = mkdir(&mount, quiet, "own").await;
                mkdir(&mount, own, "deeper").await;
                let found = find(&mount, quiet, "own").await;
                assert_eq!(found, Ok(own));
                let mode = SetAttr {
                    mode: Some(0o700),
                    ..SetAttr::default()
                };
                mount.setattr(&Cred::root(), own, &mode, None).await.unwrap();
                mount.unlink(&Cred::root(), quiet, b"file").await.unwrap();
            })
            .await;
            let back = async {
                sleep(MISSING).await;
                s.isolate(0, false);
            };
            // The missing client may have changed one directory, and may have read the other one.
            let reads = waits(&s, "names in busy", async |mount| {
                let new = find(&mount, busy, "new").await;
                (new, find(&mount, busy, "file").await)
            });
            let changes = waits(&s, "change of seen", async |mount| {
                mkdir(&mount, seen, "other").await
            });
            let ((new, file), _, ()) = tokio::join!(reads, changes, back);
            assert_eq!((new, file), (Ok(open.fid), Err(Errno::ENOENT)));
            let kept = s.on(0, async |mount| mount.fsync(&open, false).await).await;
            assert_eq!(kept, Ok(()), "client 0 was evicted");
        });
    }
}

#[test]
fn a_new_client_works_where_a_missing_client_of_an_ost_left_nothing() {
    play(12, async |s| {
        let files = s.on(0, async |mount| {
            let root = mount.root();
            let mut files = Vec::new();
            for name in ["dirty", "other"] {
                let (cred, flags) = (Cred::root(), OpenFlags::READ_WRITE);
                let (_, file) = mount
                    .create(&cred, root, name.as_bytes(), 0o644, flags)
                    .await
                    .unwrap();
                files.push(file);
            }
            mount.write(&files[0], 0, text("dirty")).await.unwrap();
            mount.write(&files[1], 0, text("dirty")).await.unwrap();
            files
        });
        let files = files.await;
        s.isolate_from_osts(0, true);
        for server in [1, 2] {
            s.restart(server, Death::PowerCut).await;
        }
        mount(&s).await;
        // New files get objects that the missing client cannot know.
        at_once(&s, "new file", async |mount| {
            let root = mount.root();
            let dir = mkdir(&mount, root, "own").await;
            let file = write_file(&mount, dir, "file", text("own")).await;
            assert_eq!(read_file(&mount, file).await, b"own");
        })
        .await;
        let back = async {
            sleep(MISSING).await;
            s.isolate_from_osts(0, false);
        };
        let reads = waits(&s, "file with dirty data", async |mount| {
            read_file(&mount, files[0].fid).await
        });
        let (read, ()) = tokio::join!(reads, back);
        assert_eq!(read, b"dirty");
        for file in &files {
            let kept = s.on(0, async |mount| mount.fsync(file, false).await).await;
            assert_eq!(kept, Ok(()), "client 0 was evicted");
        }
    });
}

#[test]
fn a_new_client_goes_on_when_the_missing_client_is_evicted() {
    play(13, async |s| {
        let [(busy, _), ..] = make_dirs(&s).await;
        s.on(0, async |mount| mkdir(&mount, busy, "lost").await).await;
        s.isolate(0, true);
        s.restart(0, Death::PowerCut).await;
        mount(&s).await;
        let begin = Instant::now();
        s.on(NEW, async |mount| mkdir(&mount, busy, "made").await).await;
        let waited = begin.elapsed();
        assert!((8..20).contains(&waited.as_secs()), "waited for {waited:?}");
    });
}

#[test]
fn the_changes_of_a_new_client_survive_a_second_crash() {
    play(14, async |s| {
        let [_, (quiet, _), _] = make_dirs(&s).await;
        s.isolate(0, true);
        s.restart(0, Death::PowerCut).await;
        mount(&s).await;
        let own = at_once(&s, "change", async |mount| {
            let own = mkdir(&mount, quiet, "own").await;
            for n in 0..9 {
                mkdir(&mount, own, &n.to_string()).await;
            }
            let cred = Cred::root();
            let renamed = mount.rename(&cred, (own, b"0"), (own, b"renamed"));
            renamed.await.unwrap();
            own
        });
        let own = own.await;
        sleep(Duration::from_millis(100)).await;
        at_once(&s, "change", async |mount| mkdir(&mount, own, "last").await).await;
        s.restart(0, Death::PowerCut).await;
        s.isolate(0, false);
        let names = s.on(NEW, async |mount| {
            let mut names = Vec::new();
            for name in ["0", "1", "8", "renamed", "last"] {
                names.push(find(&mount, own, name).await.is_ok());
            }
            names
        });
        assert_eq!(names.await, [false, true, true, true, true]);
        let seen = s.on(1, async |mount| find(&mount, own, "last").await).await;
        assert!(seen.is_ok(), "{seen:?}");
    });
}

#[test]
fn a_client_that_rests_leaves_no_claims_behind() {
    play(15, async |s| {
        let [(busy, _), ..] = make_dirs(&s).await;
        s.on(0, async |mount| mkdir(&mount, busy, "made").await).await;
        // A ping of the resting client.
        sleep(Duration::from_secs(60)).await;
        s.isolate(0, true);
        s.restart(0, Death::Process).await;
        mount(&s).await;
        at_once(&s, "names in busy", async |mount| {
            assert!(find(&mount, busy, "made").await.is_ok());
        })
        .await;
    });
}
