//! `.lustre`: access to every file by FID, such as `.lustre/fid/[0x200000401:0x1:0x0]`.
//!
//! `.lustre` and `.lustre/fid` are inodes with fixed FIDs: users can change their modes. The target
//! creates them at its start if they are missing. The name `.lustre` has no record in the root, so
//! a listing of the root omits it. Names in `.lustre/fid` have no records either: the target parses
//! them as FIDs. A record with one of these names takes precedence: an older version of Nacre may
//! have created it.

use wire::{DOT_LUSTRE_NAME, Errno, Fid, Time, Transno};

use super::{Change, DIR_BLOCK, DirChange, Entry, Inode, S_IFDIR, Store, links};

/// The name of the directory in `.lustre`.
const FID_NAME: &[u8] = b"fid";
/// Mode of `.lustre`: all users may search and list it.
const DOT_LUSTRE_MODE: u32 = S_IFDIR | 0o755;
/// Mode of `.lustre/fid`: only the owner and the superuser may access files by FID, because that
/// bypasses the permissions of the directories above.
const FID_MODE: u32 = S_IFDIR | 0o100;

/// Looks up a name without a record.
pub(super) async fn entry(store: &Store, dir: Fid, name: &[u8]) -> Result<Option<Entry>, Errno> {
    let fid = match dir {
        Fid::ROOT if name == DOT_LUSTRE_NAME.as_bytes() => Some(Fid::DOT_LUSTRE),
        Fid::DOT_LUSTRE_FID => named_fid(name),
        _ => None,
    };
    let Some(fid) = fid else { return Ok(None) };
    let entry = |inode: Inode| Entry {
        fid,
        kind: inode.kind(),
    };
    Ok(store.find(fid).await?.map(entry))
}

/// Parses a name in `.lustre/fid` as the FID of a client's file, of the root, or of a directory of
/// `.lustre`; brackets are optional.
fn named_fid(name: &[u8]) -> Option<Fid> {
    let fid: Fid = std::str::from_utf8(name).ok()?.parse().ok()?;
    (fid.is_normal() || fid.is_root() || fid.is_dot_lustre()).then_some(fid)
}

/// The directory and name of `.lustre` itself, which has no record.
pub(crate) fn own_name() -> (Fid, &'static [u8]) {
    (Fid::ROOT, DOT_LUSTRE_NAME.as_bytes())
}

/// Creates `.lustre` and `.lustre/fid`, with this owner and group, and the entry `fid` in
/// `.lustre`, as far as they are missing.
pub(crate) async fn make(store: &Store, (uid, gid): (u32, u32), now: Time) -> Result<(), Errno> {
    let dot = store.find(Fid::DOT_LUSTRE).await?;
    let lacks_dot = dot.is_none();
    let lacks_by_fid = store.find(Fid::DOT_LUSTRE_FID).await?.is_none();
    let lacks_name = store.entry(Fid::DOT_LUSTRE, FID_NAME).await?.is_none();
    if !(lacks_dot || lacks_by_fid || lacks_name) {
        return Ok(());
    }
    let directory = |(parent, name): (Fid, &[u8]), mode: u32| Inode {
        mode,
        uid,
        gid,
        nlink: 2,
        size: DIR_BLOCK,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        links: links::add(&[], parent, name, now.sec),
        ..Inode::default()
    };
    let mut change = Change::new();
    if lacks_dot || lacks_name {
        let new = || directory(own_name(), DOT_LUSTRE_MODE);
        let mut dot = dot.unwrap_or_else(new);
        (dot.nlink, dot.size) = (2, DIR_BLOCK);
        DirChange::at(now)
            .add(FID_NAME, S_IFDIR)
            .apply(&mut dot, Transno::NONE);
        change.change_inode(Fid::DOT_LUSTRE, &dot);
    }
    if lacks_by_fid {
        let by_fid = directory((Fid::DOT_LUSTRE, FID_NAME), FID_MODE);
        change.change_inode(Fid::DOT_LUSTRE_FID, &by_fid);
    }
    if lacks_name {
        let entry = Entry {
            fid: Fid::DOT_LUSTRE_FID,
            kind: S_IFDIR,
        };
        change.add_entry(Fid::DOT_LUSTRE, FID_NAME, entry);
    }
    store.apply(change).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::named_fid;
    use wire::Fid;

    #[test]
    fn only_fids_that_users_can_access_are_valid_names() {
        let file = Fid::new(0x2_0000_0401, 7, 0);
        for name in ["[0x200000401:0x7:0x0]", "0x200000401:0x7:0x0"] {
            assert_eq!(named_fid(name.as_bytes()), Some(file));
        }
        assert_eq!(named_fid(Fid::ROOT.to_string().as_bytes()), Some(Fid::ROOT));
        let by_fid = Fid::DOT_LUSTRE_FID.to_string();
        assert_eq!(named_fid(by_fid.as_bytes()), Some(Fid::DOT_LUSTRE_FID));
        for name in [
            "",
            "file",
            "[0x1:0x2:0x0]",
            "[0x200000401:0x7:0x0",
            "[0x200000401:0x7]",
            "\u{e9}",
        ] {
            assert_eq!(named_fid(name.as_bytes()), None, "{name}");
        }
    }
}
