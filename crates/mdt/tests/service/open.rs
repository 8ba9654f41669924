//! Tests of opens, closes, layouts and objects.

use wire::{
    DISP_IT_EXECD, DISP_LOOKUP_EXECD, DISP_LOOKUP_NEG, DISP_LOOKUP_POS, DISP_OPEN_CREATE, DISP_OPEN_LOCK,
    DISP_OPEN_OPEN, Errno, Fid, LCK_CR, LCK_CW, LCK_PR, LUSTRE_ORPHAN_FL, LdlmReply, MDS_ATTR_LBLOCKS,
    MDS_ATTR_LSIZE, MDS_ATTR_SIZE, MDS_ATTR_UID, MDS_DATA_MODIFIED, MDS_FMODE_EXEC, MDS_FMODE_READ,
    MDS_FMODE_WRITE, MDS_INODELOCK_LAYOUT as LAYOUT, MDS_INODELOCK_LOOKUP as LOOKUP,
    MDS_INODELOCK_OPEN as OPEN, MDS_INODELOCK_PERM as PERM, MDS_INODELOCK_UPDATE as UPDATE, MDS_OPEN_BY_FID,
    MDS_OPEN_CREAT, MDS_OPEN_DELAY_CREATE, MDS_OPEN_DIRECTORY, MDS_OPEN_EXCL, MDS_OPEN_HAS_EA, MDS_OPEN_LOCK,
    MdtRecSetattr, OBD_MD_FLLAZYSIZE, OBD_MD_FLSIZE, striping::PlainLayout,
};

use std::sync::{Arc, atomic::Ordering::SeqCst};

use crate::fixture::{Fixture, wait_until};
use testbase::{
    InstrumentedIndex,
    mds_client::{Client, Intent},
};

const CREATE: u64 = MDS_OPEN_CREAT | MDS_FMODE_WRITE | MDS_FMODE_READ;
const LOOKED_UP: u64 = DISP_IT_EXECD | DISP_LOOKUP_EXECD;

/// The layout in the reply to an open.
fn layout(result: &Intent) -> PlainLayout {
    PlainLayout::parse(result.reply.buf(3)).unwrap()
}

/// A `lov_user_md` for `count` stripes, the first on OST `first`.
fn stripe_request(count: u16, first: u16) -> Vec<u8> {
    let layout = PlainLayout {
        stripe_count: count,
        layout_gen: first,
        ..PlainLayout::raid0(Fid::ZERO, 1 << 20, vec![])
    };
    let mut ea = layout.build().to_vec();
    ea[8..24].fill(0);
    ea
}

#[tokio::test]
async fn open_with_create_returns_a_layout_locks_and_a_handle() {
    let f = Fixture::new(2).await;
    let c = f.client().await;
    let created = c.open(Fid::ROOT, "file", CREATE).await;
    assert_eq!(
        created.disposition,
        LOOKED_UP | DISP_LOOKUP_NEG | DISP_OPEN_CREATE | DISP_OPEN_OPEN
    );
    assert_eq!(
        (created.status, created.lock_fid, created.mode, created.bits),
        (0, created.fid(), LCK_PR, LOOKUP | UPDATE | LAYOUT | PERM)
    );
    assert_eq!(created.body.mbo_mode, 0o100644);
    assert_eq!(created.body.mbo_valid & OBD_MD_FLSIZE, 0);
    assert!(created.reply.body.pb_transno != 0 && created.handle() != 0);
    let md = layout(&created);
    assert_eq!(
        (md.stripe_count, md.stripe_size, md.objects.len()),
        (1, 4 << 20, 1)
    );
    c.close(created.fid(), created.handle()).await.unwrap();
    assert_eq!(
        c.close(created.fid(), created.handle()).await.unwrap_err(),
        Errno::ESTALE
    );
    let excl = c.open(Fid::ROOT, "file", CREATE | MDS_OPEN_EXCL).await;
    assert_eq!(
        (excl.disposition, excl.status),
        (LOOKED_UP | DISP_LOOKUP_POS, Errno::EEXIST.status())
    );
    let again = c.open(Fid::ROOT, "file", MDS_FMODE_READ).await;
    assert_eq!(again.disposition, LOOKED_UP | DISP_LOOKUP_POS | DISP_OPEN_OPEN);
    assert_eq!(layout(&again), md);
    let missing = c.open(Fid::ROOT, "none", MDS_FMODE_READ).await;
    assert_eq!(
        (missing.disposition, missing.status),
        (LOOKED_UP | DISP_LOOKUP_NEG, 0)
    );
    let locked = c.layout(created.fid()).await;
    let rep: LdlmReply = locked.get(1).unwrap();
    assert_eq!(
        (rep.lock_desc.l_granted_mode, rep.lock_desc.l_policy_data.bits()),
        (LCK_CR, LAYOUT)
    );
    assert_eq!(PlainLayout::parse(locked.buf(2)).unwrap(), md);
}

/// Creates up to `files` files with one stripe, until `is_enough` accepts their number on each OST.
/// Returns these numbers.
async fn count_files_by_ost<const OSTS: usize>(
    c: &Client,
    name: &str,
    files: u32,
    is_enough: impl Fn(&[u32; OSTS]) -> bool,
) -> [u32; OSTS] {
    let mut counts = [0; OSTS];
    for n in 0..files {
        let created = c.open(Fid::ROOT, &format!("{name}{n}"), CREATE).await;
        counts[layout(&created).objects[0].l_ost_idx as usize] += 1;
        if is_enough(&counts) {
            break;
        }
        tokio::task::yield_now().await;
    }
    counts
}

#[tokio::test]
async fn new_files_take_turns_on_osts_and_use_osts_that_join_later() {
    let mut f = Fixture::new(2).await;
    let c = f.client().await;
    assert_eq!(count_files_by_ost(&c, "f", 10, |_| false).await, [5, 5]);
    f.params.set("lod.*.new_ost_delay", "0").unwrap();
    f.add_ost();
    let counts = count_files_by_ost::<3>(&c, "g", 1000, |counts| counts[2] > 0).await;
    assert!(counts[2] > 0, "new files use the new OST");
}

#[tokio::test]
async fn new_files_avoid_an_ost_unknown_to_lustre_clients() {
    let mut f = Fixture::new(1).await;
    let c = f.client().await;
    f.params.set("lod.*.new_ost_delay", "3600").unwrap();
    f.add_ost();
    wait_until(|| f.params.get("lod.*.activeobd")[0].1 == "2").await;
    f.params.set("lod.*.new_ost_delay", "0").unwrap();
    f.add_ost();
    // New files use the third OST at once, although it joined after the second one.
    let counts = count_files_by_ost::<3>(&c, "f", 1000, |counts| counts[2] > 0).await;
    assert!(counts[0] > 0 && counts[2] > 0, "{counts:?}");
    assert_eq!(counts[1], 0);
}

#[tokio::test]
async fn layout_comes_from_the_user_or_the_directory() {
    let f = Fixture::new(3).await;
    let c = f.client().await;
    // Wait until all OSTs have objects.
    for i in 0..3 {
        c.open_with(
            Fid::ROOT,
            &format!("on{i}"),
            CREATE | MDS_OPEN_HAS_EA,
            &stripe_request(1, i),
        )
        .await;
    }
    let d = c.mkdir(Fid::ROOT, "d").await;
    let rec = MdtRecSetattr {
        sa_fid: d,
        ..Default::default()
    };
    c.setattr(rec, &stripe_request(2, u16::MAX)).await.unwrap();
    let two = layout(&c.open(d, "two", CREATE).await);
    assert_eq!((two.stripe_count, two.stripe_size), (2, 1 << 20));
    let first = layout(
        &c.open_with(d, "first", CREATE | MDS_OPEN_HAS_EA, &stripe_request(1, 2))
            .await,
    );
    assert_eq!((first.stripe_count, first.objects[0].l_ost_idx), (1, 2));
    let sub = c.mkdir(d, "sub").await;
    assert_eq!(layout(&c.open(sub, "inherits", CREATE).await).stripe_count, 2);
    let bad = c
        .open_with(d, "bad", CREATE | MDS_OPEN_HAS_EA, &stripe_request(1, 9))
        .await;
    assert_eq!(bad.status, Errno::EINVAL.status());
    let late = c.open(d, "late", CREATE | MDS_OPEN_DELAY_CREATE).await;
    assert!(late.reply.buf(3).is_empty() && late.body.mbo_valid & OBD_MD_FLSIZE != 0);
    let flags = MDS_OPEN_BY_FID | MDS_OPEN_HAS_EA | MDS_FMODE_WRITE;
    let first_layout = c
        .open_with(late.fid(), "", flags, &stripe_request(3, u16::MAX))
        .await;
    assert_eq!((first_layout.status, layout(&first_layout).stripe_count), (0, 3));
    let second_layout = c
        .open_with(late.fid(), "", flags, &stripe_request(1, u16::MAX))
        .await;
    assert_eq!(second_layout.status, Errno::EEXIST.status());
}

#[tokio::test]
async fn first_layout_revokes_a_readers_cr_lock_on_the_empty_layout() {
    let f = Fixture::new(1).await;
    let (a, b) = (f.client().await, f.client().await);
    let file = a.make(Fid::ROOT, "empty", 0o100666, "").await.unwrap();
    assert!(a.layout(file).await.buf(2).is_empty());
    assert_eq!(b.open(Fid::ROOT, "empty", MDS_FMODE_WRITE).await.status, 0);
    let revoked = a.revoked.lock();
    let is_layout = |(fid, bits): &(Fid, u64)| *fid == file && bits & LAYOUT != 0;
    assert!(revoked.iter().any(is_layout));
}

#[tokio::test]
async fn objects_of_a_late_layout_get_the_size_of_the_file() {
    const MIB: u64 = 1 << 20;
    let f = Fixture::new(2).await;
    let c = f.client().await;
    // Creates a file of this size without a layout.
    let create_sized = async |name: &str, size: u64| {
        let created = c.open(Fid::ROOT, name, CREATE | MDS_OPEN_DELAY_CREATE).await;
        c.close(created.fid(), created.handle()).await.unwrap();
        let rec = MdtRecSetattr {
            sa_fid: created.fid(),
            sa_valid: MDS_ATTR_SIZE,
            sa_size: size,
            ..Default::default()
        };
        let body = c.setattr(rec, &[]).await.unwrap();
        assert_eq!(body.mbo_size, size);
        created.fid()
    };
    // The sizes set on objects since the last call, by OST.
    let take_sizes = || {
        f.osts
            .iter()
            .map(|o| o.sizes.lock().split_off(0))
            .collect::<Vec<_>>()
    };

    // The first open for write gives the file a layout.
    let fid = create_sized("written", 5).await;
    let written = c.open(fid, "", MDS_OPEN_BY_FID | MDS_FMODE_WRITE).await;
    let object = layout(&written).objects[0];
    let expected = vec![(object.l_ost_oi.fid(), 5, true)];
    assert_eq!(take_sizes()[object.l_ost_idx as usize], expected);

    // An open with a layout: the last byte is in the second of two stripes.
    let fid = create_sized("striped", 2 * MIB).await;
    let flags = MDS_OPEN_BY_FID | MDS_OPEN_HAS_EA | MDS_FMODE_WRITE;
    let striped = layout(&c.open_with(fid, "", flags, &stripe_request(2, u16::MAX)).await);
    let (first, last) = (striped.objects[0].l_ost_idx, striped.objects[1]);
    let sizes = take_sizes();
    assert_eq!(sizes[first as usize], []);
    assert_eq!(sizes[last.l_ost_idx as usize], [(last.l_ost_oi.fid(), MIB, true)]);

    // An empty file needs no request to the OST.
    let fid = create_sized("empty", 0).await;
    c.open(fid, "", MDS_OPEN_BY_FID | MDS_FMODE_WRITE).await;
    assert_eq!(take_sizes(), [[], []]);
}

#[tokio::test]
async fn close_by_a_writer_sets_the_lazy_size() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let created = c.open(Fid::ROOT, "file", CREATE).await;
    let rec = MdtRecSetattr {
        sa_fid: created.fid(),
        sa_valid: MDS_ATTR_LSIZE | MDS_ATTR_LBLOCKS,
        sa_size: 6,
        sa_blocks: 8,
        sa_bias: MDS_DATA_MODIFIED,
        ..Default::default()
    };
    c.close_with(created.handle(), rec).await.unwrap();
    let body = c.getattr(Fid::ROOT, "file").await.body;
    assert_eq!((body.mbo_size, body.mbo_blocks), (6, 8));
    assert_eq!(
        body.mbo_valid & (OBD_MD_FLSIZE | OBD_MD_FLLAZYSIZE),
        OBD_MD_FLLAZYSIZE
    );
}

#[tokio::test]
async fn objects_are_destroyed_when_a_removed_file_is_closed() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let created = c.open(Fid::ROOT, "file", CREATE).await;
    let object = layout(&created).objects[0].l_ost_oi.fid();
    let removed = c.unlink(Fid::ROOT, "file", false).await.unwrap();
    assert_eq!(
        (removed.mbo_nlink, removed.mbo_flags & LUSTRE_ORPHAN_FL),
        (0, LUSTRE_ORPHAN_FL)
    );
    let open = c.getattr_as(wire::IT_GETATTR, Fid::ROOT, created.fid(), "").await;
    assert_eq!((open.status, open.body.mbo_nlink), (0, 0));
    assert!(f.osts[0].destroyed.lock().is_empty());
    c.close(created.fid(), created.handle()).await.unwrap();
    wait_until(|| *f.osts[0].destroyed.lock() == [object]).await;
    let other = c.open(Fid::ROOT, "other", CREATE).await;
    c.close(other.fid(), other.handle()).await.unwrap();
    let removed = c.unlink(Fid::ROOT, "other", false).await.unwrap();
    assert_eq!((removed.mbo_nlink, removed.mbo_flags & LUSTRE_ORPHAN_FL), (0, 0));
}

#[tokio::test]
async fn objects_get_the_new_owner_of_their_file() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let created = c.open(Fid::ROOT, "file", CREATE).await;
    let object = layout(&created).objects[0].l_ost_oi.fid();
    let rec = MdtRecSetattr {
        sa_fid: created.fid(),
        sa_valid: MDS_ATTR_UID,
        sa_uid: 7,
        ..Default::default()
    };
    c.setattr(rec, &[]).await.unwrap();
    wait_until(|| *f.osts[0].owners.lock() == [(object, 7, 0)]).await;
}

#[tokio::test]
async fn open_locks_match_a_lustre_server() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let d = c.mkdir(Fid::ROOT, "d").await;
    let plain = c
        .open(d, "", MDS_OPEN_BY_FID | MDS_OPEN_DIRECTORY | MDS_FMODE_READ)
        .await;
    assert_eq!(
        (plain.disposition, plain.has_lock()),
        (LOOKED_UP | DISP_LOOKUP_POS | DISP_OPEN_OPEN, false)
    );
    let locked = c
        .open(
            d,
            "",
            MDS_OPEN_BY_FID | MDS_OPEN_DIRECTORY | MDS_FMODE_READ | MDS_OPEN_LOCK,
        )
        .await;
    assert_eq!((locked.mode, locked.bits), (LCK_CR, LOOKUP | OPEN));
    assert_ne!(locked.disposition & DISP_OPEN_LOCK, 0);
    let written = c.open(Fid::ROOT, "d", MDS_FMODE_WRITE).await;
    assert_eq!(
        (written.status, written.disposition),
        (Errno::EISDIR.status(), LOOKED_UP | DISP_LOOKUP_POS)
    );
    let file = c.open(Fid::ROOT, "file", CREATE | MDS_OPEN_LOCK).await;
    assert_eq!((file.mode, file.bits), (LCK_CW, LOOKUP | OPEN | LAYOUT));
    let not_a_dir = c
        .open(Fid::ROOT, "file", MDS_OPEN_DIRECTORY | MDS_FMODE_READ)
        .await;
    assert_eq!(not_a_dir.status, Errno::ENOTDIR.status());
    // The client resolves the link, which may lead to a directory.
    c.make(Fid::ROOT, "link", 0o120777, "nowhere").await.unwrap();
    let link = c
        .open(Fid::ROOT, "link", MDS_OPEN_DIRECTORY | MDS_FMODE_READ)
        .await;
    assert_eq!((link.status, link.handle()), (0, 0));
    let fifo = c.make(Fid::ROOT, "fifo", 0o010666, "").await.unwrap();
    let special = c.open(Fid::ROOT, "fifo", MDS_FMODE_READ).await;
    assert_eq!((special.fid(), special.handle()), (fifo, 0));
    assert_eq!(special.disposition & DISP_OPEN_OPEN, 0);
}

#[tokio::test]
async fn disconnect_closes_open_files() {
    let f = Fixture::new(1).await;
    let (a, b) = (f.client().await, f.client().await);
    let created = a.open(Fid::ROOT, "file", CREATE).await;
    let rec = MdtRecSetattr {
        sa_fid: created.fid(),
        sa_valid: wire::MDS_ATTR_MODE,
        sa_mode: 0o755,
        ..Default::default()
    };
    a.setattr(rec, &[]).await.unwrap();
    assert_eq!(
        b.open(Fid::ROOT, "file", MDS_FMODE_EXEC).await.status,
        Errno::ETXTBSY.status()
    );
    a.unlink(Fid::ROOT, "file", false).await.unwrap();
    a.disconnect().await;
    wait_until(|| f.osts[0].destroyed.lock().len() == 1).await;
    assert_eq!(
        b.getattr_as(wire::IT_GETATTR, Fid::ROOT, created.fid(), "")
            .await
            .status,
        Errno::ENOENT.status()
    );
}

#[tokio::test]
async fn create_reads_the_name_and_the_fid_once() {
    let index = Arc::new(InstrumentedIndex::default());
    let f = Fixture::with_index(1, index.clone()).await;
    let c = f.client().await;
    for name in ["first", "second"] {
        let before = index.gets.load(SeqCst);
        assert_eq!(c.open(Fid::ROOT, name, CREATE).await.status, 0);
        // The directories are cached after the first create.
        if name == "second" {
            assert_eq!(index.gets.load(SeqCst) - before, 2);
        }
        c.unlink(Fid::ROOT, name, false).await.unwrap();
    }
    let before = index.gets.load(SeqCst);
    c.make(Fid::ROOT, "third", 0o100_644, "").await.unwrap();
    assert_eq!(index.gets.load(SeqCst) - before, 2);
    let before = index.gets.load(SeqCst);
    c.unlink(Fid::ROOT, "third", false).await.unwrap();
    assert_eq!(
        index.gets.load(SeqCst) - before,
        1,
        "an unlink looks the name up once"
    );
}
