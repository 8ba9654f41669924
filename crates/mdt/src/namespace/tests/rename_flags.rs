//! Renames with the flags of `renameat2`.

use testbase::Wait;
use wire::{Errno, Fid, RenameFlags};

use super::{Fixture, ROOT, check};
use crate::{cred::Cred, store::Change};

const EXCHANGE: RenameFlags = RenameFlags::EXCHANGE;

#[test]
fn exchange_swaps_a_file_and_a_directory_and_updates_the_parents_link_counts() {
    let mut f = Fixture::new();
    let (a, b) = (f.dir(ROOT, "a"), f.dir(ROOT, "b"));
    let (file, sub) = (f.file(a, "file"), f.dir(b, "sub"));
    let below = f.file(sub, "below");
    let before = [f.inode(a).version, f.inode(b).version, f.inode(file).version];
    let change = f.rename_with((a, "file"), (b, "sub"), EXCHANGE).unwrap();
    assert_eq!((f.lookup(a, "file"), f.lookup(b, "sub")), (Some(sub), Some(file)));
    assert_eq!((f.inode(a).nlink, f.inode(b).nlink), (3, 2));
    assert_eq!(
        (f.lookup(sub, ".."), f.lookup(sub, "below")),
        (Some(a), Some(below))
    );
    assert_eq!(change.pre_versions[..3], before);
    let version = change.transno.0;
    for fid in [a, b, file, sub] {
        assert_eq!(f.inode(fid).version, version);
    }
    check::assert_consistent(&f.store);
}

#[test]
fn exchange_in_one_directory_keeps_its_link_count_and_size() {
    let mut f = Fixture::new();
    let (x, y) = (f.file(ROOT, "x"), f.dir(ROOT, "a longer name"));
    f.file(y, "not empty");
    let before = f.inode(ROOT);
    f.rename_with((ROOT, "x"), (ROOT, "a longer name"), EXCHANGE)
        .unwrap();
    assert_eq!(
        (f.lookup(ROOT, "x"), f.lookup(ROOT, "a longer name")),
        (Some(y), Some(x))
    );
    let after = f.inode(ROOT);
    assert_eq!((after.nlink, after.size), (before.nlink, before.size));
    assert!(after.mtime > before.mtime);
    // Exchange them back. An exchange of two names of one file changes nothing.
    f.rename_with((ROOT, "a longer name"), (ROOT, "x"), EXCHANGE)
        .unwrap();
    f.link(x, ROOT, "link").unwrap();
    f.rename_with((ROOT, "x"), (ROOT, "link"), EXCHANGE).unwrap();
    assert_eq!((f.lookup(ROOT, "x"), f.inode(x).nlink), (Some(x), 2));
    check::assert_consistent(&f.store);
}

#[test]
fn exchange_needs_both_names_and_moves_no_directory_below_itself() {
    let mut f = Fixture::new();
    let a = f.dir(ROOT, "a");
    let b = f.dir(a, "b");
    f.dir(b, "c");
    let mut exchange = |src, dst| f.rename_with(src, dst, EXCHANGE).map(drop);
    assert_eq!(exchange((ROOT, "a"), (ROOT, "none")), Err(Errno::ENOENT));
    assert_eq!(exchange((ROOT, "none"), (ROOT, "a")), Err(Errno::ENOENT));
    assert_eq!(exchange((ROOT, "a"), (b, "c")), Err(Errno::EINVAL));
    assert_eq!(exchange((b, "c"), (ROOT, "a")), Err(Errno::EINVAL));
    check::assert_consistent(&f.store);
}

#[test]
fn exchange_needs_permission_to_remove_both_names() {
    let mut f = Fixture::new();
    let (open, sticky) = (f.dir(ROOT, "open"), f.dir(ROOT, "sticky"));
    for (dir, mode) in [(open, 0o777), (sticky, 0o1777)] {
        let mut inode = f.inode(dir);
        inode.mode = inode.mode & !0o7777 | mode;
        let mut change = Change::new();
        change.change_inode(dir, &inode);
        f.store.apply(change).wait().unwrap();
    }
    f.file(sticky, "roots");
    f.dir(open, "roots");
    f.cred = Cred {
        fsuid: 1000,
        fsgid: 1000,
        cap: 0,
        ..Cred::root()
    };
    f.file(open, "own");
    f.dir(open, "own dir");
    let mut exchange = |src, dst| f.rename_with(src, dst, EXCHANGE).map(drop);
    assert_eq!(exchange((open, "own"), (sticky, "roots")), Err(Errno::EPERM));
    assert_eq!(exchange((sticky, "roots"), (open, "own")), Err(Errno::EPERM));
    exchange((open, "own"), (open, "roots")).unwrap();
    check::assert_consistent(&f.store);
}

#[test]
fn noreplace_fails_if_the_new_name_exists() {
    let mut f = Fixture::new();
    let x = f.file(ROOT, "x");
    f.file(ROOT, "y");
    let refused = f.rename_with((ROOT, "x"), (ROOT, "y"), RenameFlags::NOREPLACE);
    assert_eq!(refused.map(drop), Err(Errno::EEXIST));
    f.rename_with((ROOT, "x"), (ROOT, "z"), RenameFlags::NOREPLACE)
        .unwrap();
    assert_eq!((f.lookup(ROOT, "x"), f.lookup(ROOT, "z")), (None, Some(x)));
    check::assert_consistent(&f.store);
}

#[test]
fn rename_with_whiteout_leaves_a_device_at_the_old_name() {
    let mut f = Fixture::new();
    let (a, b) = (f.dir(ROOT, "a"), f.dir(ROOT, "b"));
    let (x, y, sub) = (f.file(a, "x"), f.file(b, "y"), f.dir(a, "sub"));
    let assert_whiteout = |f: &Fixture, dir: Fid, name: &str| {
        let inode = f.inode(f.lookup(dir, name).unwrap());
        assert_eq!((inode.mode, inode.rdev, inode.nlink), (0o020000, 0, 1));
    };
    f.rename_with((a, "x"), (b, "y"), RenameFlags::WHITEOUT).unwrap();
    assert_eq!(
        (f.lookup(b, "y"), f.store.find(y).wait().unwrap()),
        (Some(x), None)
    );
    assert_whiteout(&f, a, "x");
    f.rename_with((a, "sub"), (a, "moved"), RenameFlags::WHITEOUT)
        .unwrap();
    assert_eq!((f.lookup(a, "moved"), f.inode(a).nlink), (Some(sub), 3));
    assert_whiteout(&f, a, "sub");
    // The FID of a whiteout must be new.
    f.last_id = 0;
    let refused = f.rename_with((b, "y"), (b, "z"), RenameFlags::WHITEOUT);
    assert_eq!(refused.map(drop), Err(Errno::EEXIST));
    check::assert_consistent(&f.store);
}
