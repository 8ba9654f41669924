//! The times that each operation sets, as every mount sees them: to the nanosecond, or in whole
//! seconds with peers that do not support nanoseconds.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Atime, Attr, Client, Clock, Cred, Fallocate, OpenFile, OpenFlags, SetAttr, SetTime};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use testkit::Cluster;
use wire::{Fid, Time};

const RW: OpenFlags = OpenFlags::READ_WRITE;
/// The clocks start shortly before the end of this second (since 1970), so the second changes
/// during a test.
const BEGIN: i64 = 1_700_000_000;
/// A second in nanoseconds.
const SECOND: i64 = 1_000_000_000;
/// Times to set: two in the past, with and without a fraction of a second, and one before 1970.
const SET: [Time; 3] = [
    Time::new(1_000_000_000, 123_456_789),
    Time::new(1_000_000_000, 0),
    Time::new(-86_400, 999_999_999),
];
/// A time with more seconds than fit 32 bits.
const FAR: Time = Time::new(5_000_000_000, 1);

/// A clock that advances by a microsecond with each reading. Stores the nanoseconds since
/// [`BEGIN`].
#[derive(Clone)]
struct TickingClock(Arc<AtomicI64>);

impl TickingClock {
    fn new() -> TickingClock {
        TickingClock(Arc::new(AtomicI64::new(SECOND - 200_000)))
    }

    fn time(ns: i64) -> Time {
        Time::new(BEGIN + ns.div_euclid(SECOND), ns.rem_euclid(SECOND) as u32)
    }

    /// A clock that is wrong by `wrong_by` nanoseconds, for one mount.
    fn clock(&self, wrong_by: i64) -> Clock {
        let ticks = self.0.clone();
        Arc::new(move || TickingClock::time(ticks.fetch_add(1000, Ordering::SeqCst) + wrong_by))
    }

    fn now(&self) -> Time {
        TickingClock::time(self.0.load(Ordering::SeqCst))
    }
}

fn times(attr: &Attr) -> (Time, Time, Time) {
    (attr.atime, attr.mtime, attr.ctime)
}

async fn stat(client: &Client, fid: Fid) -> Attr {
    client.getattr(&Cred::root(), fid).await.unwrap().attr
}

fn set_mtime(t: SetTime) -> SetAttr {
    SetAttr {
        mtime: Some(t),
        ..SetAttr::default()
    }
}

fn truncate_to(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

/// The effect of an operation on the times of the file.
enum Effect {
    /// No time changes.
    Nothing,
    /// ctime becomes now.
    Changed,
    /// mtime and ctime become now.
    Contents,
    /// mtime becomes this time, ctime now.
    SetMtime(Time),
    /// atime becomes this time, ctime now.
    SetAtime(Time),
}

struct Fixture {
    ticks: TickingClock,
    mounts: [Arc<Client>; 2],
    files: [Arc<OpenFile>; 2],
    fid: Fid,
    dir: Fid,
    random: fastrand::Rng,
    /// Number of renames of the file.
    renames: usize,
}

impl Fixture {
    /// A file in a directory, open on two mounts; the second mount's clock is wrong by `wrong_by`
    /// nanoseconds.
    async fn new(cluster: &Cluster, seed: u64, wrong_by: i64) -> Fixture {
        let ticks = TickingClock::new();
        let mount_a = cluster.mount_with(|o| o.clock = ticks.clock(0)).await;
        let mount_b = cluster.mount_with(|o| o.clock = ticks.clock(wrong_by)).await;
        let root = Cred::root();
        let dir = mount_a
            .mkdir(&root, mount_a.root(), b"d", 0o755)
            .await
            .unwrap()
            .attr
            .fid;
        let (found, first) = mount_a.create(&root, dir, b"f0", 0o644, RW).await.unwrap();
        let fid = found.attr.fid;
        drop(found);
        let second = mount_b.open(&root, fid, RW).await.unwrap();
        Fixture {
            ticks,
            mounts: [mount_a, mount_b],
            files: [first, second],
            fid,
            dir,
            random: fastrand::Rng::with_seed(seed),
            renames: 0,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random.u64(..below)
    }

    fn name(&self) -> Vec<u8> {
        format!("f{}", self.renames).into_bytes()
    }

    /// Returns the file's attributes after a change. Checks that both mounts see the same times.
    async fn seen_by_both(&self, mount_index: usize, case: &str) -> Attr {
        let seen = stat(&self.mounts[1 - mount_index], self.fid).await;
        let own = stat(&self.mounts[mount_index], self.fid).await;
        assert_eq!(times(&seen), times(&own), "{case}");
        seen
    }

    /// Runs a random operation on a random mount. Returns the mount's index, the operation and its
    /// effect.
    async fn random_operation(&mut self) -> (usize, &'static str, Effect) {
        let (operation, mount_index) = (self.random(13), self.random(2) as usize);
        let (offset, set) = (self.random(200_000), SET[self.random(3) as usize]);
        let (client, file, fid, root) = (
            self.mounts[mount_index].clone(),
            self.files[mount_index].clone(),
            self.fid,
            Cred::root(),
        );
        let data = Bytes::from(vec![operation as u8; 5000]);
        let setattr = async |set: SetAttr| client.setattr(&root, fid, &set, None).await.map(drop).unwrap();
        let (name, effect) = match operation {
            0 | 1 => {
                client.write(&file, offset, data).await.unwrap();
                ("write", Effect::Contents)
            }
            2 => {
                let flags = OpenFlags { direct: true, ..RW };
                let direct = client.open(&root, fid, flags).await.unwrap();
                client
                    .write(&direct, offset / 4096 * 4096, data.slice(..4096))
                    .await
                    .unwrap();
                client.release(&direct).await.unwrap();
                ("direct write", Effect::Contents)
            }
            3 => {
                setattr(truncate_to(offset)).await;
                ("truncate", Effect::Contents)
            }
            4 => {
                let zero = Fallocate::ZeroRange { keep_size: false };
                client.fallocate(&file, zero, offset, 5000).await.unwrap();
                ("fallocate", Effect::Contents)
            }
            5 => {
                let mode = Some(0o600 + (offset % 64) as u32);
                setattr(SetAttr {
                    mode,
                    ..SetAttr::default()
                })
                .await;
                ("chmod", Effect::Changed)
            }
            6 => {
                setattr(set_mtime(SetTime::At(set))).await;
                ("set mtime", Effect::SetMtime(set))
            }
            7 => {
                let atime = Some(SetTime::At(set));
                setattr(SetAttr {
                    atime,
                    ..SetAttr::default()
                })
                .await;
                ("set atime", Effect::SetAtime(set))
            }
            8 => {
                setattr(set_mtime(SetTime::Now)).await;
                ("touch", Effect::Contents)
            }
            9 => {
                client
                    .setxattr(&root, fid, b"user.x", &data[..9], 0)
                    .await
                    .unwrap();
                ("setxattr", Effect::Changed)
            }
            10 => {
                let from = self.name();
                self.renames += 1;
                client
                    .rename(&root, (self.dir, &from), (self.dir, &self.name()))
                    .await
                    .unwrap();
                ("rename", Effect::Changed)
            }
            11 => {
                client
                    .link(&root, fid, self.dir, b"other")
                    .await
                    .map(drop)
                    .unwrap();
                client.unlink(&root, self.dir, b"other").await.unwrap();
                ("link and unlink", Effect::Changed)
            }
            _ => {
                client.release(&file).await.unwrap();
                self.files[mount_index] = client.open(&root, fid, RW).await.unwrap();
                ("close", Effect::Nothing)
            }
        };
        (mount_index, name, effect)
    }

    async fn end(self) {
        for (client, file) in self.mounts.iter().zip(&self.files) {
            client.release(file).await.unwrap();
            client.umount().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_operation_sets_its_times_on_every_mount() {
    for seed in 1..9 {
        let cluster = Cluster::start(2).await;
        let mut fixture = Fixture::new(&cluster, seed, 0).await;
        let mut before = stat(&fixture.mounts[0], fixture.fid).await;
        let birth = before.btime;
        for step in 0..60 {
            let start = fixture.ticks.now();
            let (mount_index, operation, effect) = fixture.random_operation().await;
            let interval: RangeInclusive<Time> = start..=fixture.ticks.now();
            let case = format!(
                "seed {seed} step {step}: {operation} by {mount_index}: {interval:?}, before {before:?}"
            );
            let seen = fixture.seen_by_both(mount_index, &case).await;
            assert_eq!(seen.btime, birth, "{case}");
            match effect {
                Effect::Nothing => assert_eq!(times(&seen), times(&before), "{case}"),
                _ => assert!(interval.contains(&seen.ctime), "ctime: {case}"),
            }
            match effect {
                Effect::Contents => assert!(interval.contains(&seen.mtime), "mtime: {case}"),
                Effect::SetMtime(t) => assert_eq!(seen.mtime, t, "{case}"),
                _ => assert_eq!(seen.mtime, before.mtime, "{case}"),
            }
            match effect {
                Effect::SetAtime(t) => assert_eq!(seen.atime, t, "{case}"),
                _ => assert_eq!(seen.atime, before.atime, "{case}"),
            }
            if matches!(operation, "rename" | "link and unlink") {
                let dir = stat(&fixture.mounts[1 - mount_index], fixture.dir).await;
                assert!(
                    interval.contains(&dir.mtime) && dir.mtime == dir.ctime,
                    "directory: {case}"
                );
            }
            before = seen;
        }
        // The times are the same after write-back and a remount.
        let fid = fixture.fid;
        fixture.end().await;
        let later = cluster.mount().await;
        assert_eq!(
            times(&stat(&later, fid).await),
            times(&before),
            "seed {seed}: after a remount"
        );
        later.umount().await;
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_do_not_go_back_when_clocks_differ() {
    for (seed, wrong_by) in [(1, -70_000), (2, 30_000), (3, -3 * SECOND), (4, 3 * SECOND)] {
        let cluster = Cluster::start(2).await;
        let mut fixture = Fixture::new(&cluster, seed, wrong_by).await;
        let mut before = stat(&fixture.mounts[0], fixture.fid).await;
        for step in 0..60 {
            let (mount_index, operation, effect) = fixture.random_operation().await;
            let case = format!("seed {seed} step {step}: {operation} by {mount_index}: before {before:?}");
            let seen = fixture.seen_by_both(mount_index, &case).await;
            assert!(seen.ctime >= before.ctime, "{case}");
            if let Effect::SetMtime(t) = effect {
                assert_eq!(seen.mtime, t, "{case}");
            }
            before = seen;
        }
        fixture.end().await;
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_write_replaces_a_time_in_the_future() {
    let cluster = Cluster::start(2).await;
    let fixture = Fixture::new(&cluster, 1, 0).await;
    let [mount_a, mount_b] = fixture.mounts.clone();
    mount_a
        .setattr(&Cred::root(), fixture.fid, &set_mtime(SetTime::At(FAR)), None)
        .await
        .unwrap();
    for client in [&mount_a, &mount_b] {
        assert_eq!(stat(client, fixture.fid).await.mtime, FAR);
    }
    mount_b
        .write(&fixture.files[1], 0, Bytes::from_static(b"x"))
        .await
        .unwrap();
    for client in [&mount_a, &mount_b] {
        let seen = stat(client, fixture.fid).await;
        assert_eq!((seen.mtime, seen.mtime.sec / 10), (seen.ctime, BEGIN / 10));
    }
    fixture.end().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_nanoseconds_sees_and_sets_whole_seconds() {
    let cluster = Cluster::start(2).await;
    let ticks = TickingClock::new();
    let fine = cluster.mount_with(|o| o.clock = ticks.clock(0)).await;
    let coarse = |o: &mut client::MountOptions| {
        o.clock = ticks.clock(0);
        o.nanoseconds = false;
    };
    let coarse = cluster.mount_with(coarse).await;
    assert!(fine.has_nanoseconds() && !coarse.has_nanoseconds());
    let (root, whole) = (Cred::root(), |t: Time| Time::secs(t.sec));
    let (found, file) = fine.create(&root, fine.root(), b"f", 0o644, RW).await.unwrap();
    let (fid, birth) = (found.attr.fid, found.attr.btime);
    drop(found);
    fine.write(&file, 0, Bytes::from_static(b"x")).await.unwrap();
    let set = Time::new(1_000_000_000, 123_456_789);
    fine.setattr(&root, fid, &set_mtime(SetTime::At(set)), None)
        .await
        .unwrap();
    let (precise, rough) = (stat(&fine, fid).await, stat(&coarse, fid).await);
    assert_eq!((precise.mtime, rough.mtime), (set, whole(set)));
    assert_eq!((precise.btime, rough.btime), (birth, whole(birth)));
    assert_eq!(rough.ctime, whole(precise.ctime));

    // The coarse client changes the file within the second of the last change: no time goes back.
    // Times that the coarse client sets have whole seconds.
    let coarse_file = coarse.open(&root, fid, RW).await.unwrap();
    coarse
        .write(&coarse_file, 0, Bytes::from_static(b"y"))
        .await
        .unwrap();
    let own = stat(&coarse, fid).await;
    assert_eq!(
        (own.mtime, own.ctime),
        (rough.ctime, rough.ctime),
        "the coarse client's times have whole seconds even before they are sent"
    );
    coarse.release(&coarse_file).await.unwrap();
    let seen = stat(&fine, fid).await;
    assert!(
        seen.ctime >= precise.ctime && seen.mtime.sec == seen.ctime.sec,
        "{seen:?}"
    );
    coarse
        .setattr(&root, fid, &set_mtime(SetTime::At(set)), None)
        .await
        .unwrap();
    assert_eq!(stat(&fine, fid).await.mtime, whole(set));
    fine.release(&file).await.unwrap();
    for client in [&fine, &coarse] {
        client.umount().await;
    }
    cluster.stop().await;
}

/// Reads a byte of an open file.
async fn read(client: &Client, file: &OpenFile) {
    assert_eq!(client.read(file, 0, 1).await.unwrap().concat().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_read_after_a_change_sets_atime_and_the_close_reports_it() {
    let cluster = Cluster::start(1).await;
    let ticks = TickingClock::new();
    let mount = async |wrong_by: i64, atime: Atime| {
        let options = |o: &mut client::MountOptions| (o.clock, o.atime) = (ticks.clock(wrong_by), atime);
        cluster.mount_with(options).await
    };
    let (writer, reader) = (
        mount(0, Atime::Relative).await,
        mount(100 * SECOND, Atime::Relative).await,
    );
    let root = Cred::root();
    let (found, file) = writer
        .create(&root, writer.root(), b"f", 0o644, RW)
        .await
        .unwrap();
    let (fid, created) = (found.attr.fid, found.attr.atime);
    drop(found);
    writer.write(&file, 0, Bytes::from_static(b"x")).await.unwrap();
    writer.release(&file).await.unwrap();

    let open = async |client: &Client| client.open(&root, fid, OpenFlags::READ).await.unwrap();
    let no_atime = OpenFlags {
        no_atime: true,
        ..OpenFlags::READ
    };
    let no_atime_file = reader.open(&root, fid, no_atime).await.unwrap();
    read(&reader, &no_atime_file).await;
    reader.release(&no_atime_file).await.unwrap();
    assert_eq!(stat(&reader, fid).await.atime, created, "O_NOATIME");
    let first = open(&reader).await;
    read(&reader, &first).await;
    let seen = stat(&reader, fid).await.atime;
    assert!(seen.sec >= BEGIN + 100, "the reader sees the new atime: {seen:?}");
    assert_eq!(
        stat(&writer, fid).await.atime,
        created,
        "other mounts see the old atime"
    );
    read(&reader, &first).await;
    assert_eq!(
        stat(&reader, fid).await.atime,
        seen,
        "the second read does not set atime"
    );
    reader.release(&first).await.unwrap();
    assert_eq!(stat(&reader, fid).await.atime, seen);
    writer.umount().await;
    let later = mount(101 * SECOND, Atime::Relative).await;
    assert_eq!(stat(&later, fid).await.atime, seen, "the close reports the atime");

    // Less than a minute later, the reader sees the new time, but the target does not store it. The
    // close does not overwrite a time that another client has set.
    let strict = mount(120 * SECOND, Atime::Strict).await;
    let second = open(&strict).await;
    read(&strict, &second).await;
    assert!(stat(&strict, fid).await.atime > seen);
    strict.release(&second).await.unwrap();
    assert_eq!(stat(&later, fid).await.atime, seen);
    let third = open(&strict).await;
    read(&strict, &third).await;
    let atime = Some(SetTime::At(SET[0]));
    let set = SetAttr {
        atime,
        ..SetAttr::default()
    };
    let after = mount(300 * SECOND, Atime::Never).await;
    after.setattr(&root, fid, &set, None).await.unwrap();
    strict.release(&third).await.unwrap();
    assert_eq!(stat(&later, fid).await.atime, SET[0]);

    // With noatime no read sets atime.
    let fourth = open(&after).await;
    read(&after, &fourth).await;
    assert_eq!(stat(&after, fid).await.atime, SET[0]);
    after.release(&fourth).await.unwrap();
    for client in [&reader, &later, &strict, &after] {
        client.umount().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_a_directory_sets_its_atime() {
    let cluster = Cluster::start(0).await;
    let ticks = TickingClock::new();
    let mount_a = cluster.mount_with(|o| o.clock = ticks.clock(0)).await;
    let root = Cred::root();
    let dir = mount_a
        .mkdir(&root, mount_a.root(), b"d", 0o755)
        .await
        .unwrap()
        .attr;
    let list = async |client: &Client| {
        let open = client.opendir(&root, dir.fid).await.unwrap();
        client.readdir(&open, 0).await.unwrap().len()
    };
    let quiet = cluster
        .mount_with(|o| (o.clock, o.diratime) = (ticks.clock(0), false))
        .await;
    assert_eq!(list(&quiet).await, 2);
    assert_eq!(stat(&quiet, dir.fid).await.atime, dir.atime, "nodiratime");
    let before = ticks.now();
    assert_eq!(list(&mount_a).await, 2);
    let seen = stat(&mount_a, dir.fid).await.atime;
    assert!(seen >= before && seen <= ticks.now());
    let other = cluster.mount().await;
    assert_eq!(stat(&other, dir.fid).await.atime, seen);
    // A change makes an update due. A reader with O_NOATIME does not update the time, but the next
    // reader does.
    mount_a.mkdir(&root, dir.fid, b"sub", 0o755).await.unwrap();
    let no_atime = OpenFlags {
        no_atime: true,
        ..OpenFlags::READ
    };
    let open = mount_a.opendir_with(&root, dir.fid, no_atime).await.unwrap();
    assert_eq!(mount_a.readdir(&open, 0).await.unwrap().len(), 3);
    assert_eq!(stat(&mount_a, dir.fid).await.atime, seen);
    assert_eq!(stat(&other, dir.fid).await.atime, seen);
    assert_eq!(list(&mount_a).await, 3);
    assert!(stat(&mount_a, dir.fid).await.atime > seen);
    for client in [&mount_a, &quiet, &other] {
        client.umount().await;
    }
    cluster.stop().await;
}
