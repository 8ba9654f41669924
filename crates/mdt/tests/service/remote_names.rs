//! Renames, links and removals of names on other MDTs than their inodes.

use std::sync::Arc;

use bytes::Bytes;
use testbase::mds_client::Client;
use wire::{Errno, Fid, MDS_GETATTR, MdtBody, OBD_MD_MDS, WireStruct, linkea::LinkEa};

use crate::{fixture::wait_until, several_mdts::Mdts};

const FILE: u32 = 0o010644;
const DIR: u32 = 0o040777;

/// Several MDTs with a client of each. `dirs` has a directory of each MDT in the root.
struct Tree {
    mdts: Mdts,
    clients: Vec<Arc<Client>>,
    dirs: Vec<Fid>,
}

impl Tree {
    async fn start(count: usize) -> Tree {
        let mdts = Mdts::start(count).await;
        let (mut clients, mut dirs) = (Vec::new(), Vec::new());
        for mdt in 0..count {
            let client = mdts.client(mdt).await;
            let name = format!("dir{mdt}");
            dirs.push(client.make(Fid::ROOT, &name, DIR, "").await.unwrap());
            clients.push(client);
        }
        Tree { mdts, clients, dirs }
    }

    /// Creates an inode on an MDT, with its name in a directory of that MDT or, for a directory, of
    /// any.
    async fn make(&self, mdt: usize, parent: Fid, name: &str, mode: u32) -> Fid {
        self.clients[mdt].make(parent, name, mode, "").await.unwrap()
    }

    async fn attrs(&self, mdt: usize, fid: Fid) -> Result<MdtBody, Errno> {
        let body = MdtBody {
            mbo_fid1: fid,
            ..MdtBody::default()
        };
        let reply = self.clients[mdt]
            .call(MDS_GETATTR, vec![body.to_bytes(), Bytes::new()])
            .await?;
        reply.get(1)
    }

    async fn nlink(&self, mdt: usize, fid: Fid) -> u32 {
        self.attrs(mdt, fid).await.unwrap().mbo_nlink
    }

    /// The names that an inode records.
    async fn links(&self, mdt: usize, fid: Fid) -> Vec<(Fid, Bytes)> {
        let ea = self.clients[mdt].getxattr(fid, "trusted.link").await.unwrap();
        let mut links = LinkEa::parse(&ea).unwrap().links;
        links.sort();
        links
    }

    /// The names in the directory of an MDT.
    async fn names(&self, mdt: usize) -> Vec<String> {
        let names = self.clients[mdt].readdir(self.dirs[mdt]).await;
        names.into_iter().filter(|name| !name.starts_with('.')).collect()
    }

    /// Renames a name between the directories of two MDTs, by the MDT `at`.
    async fn rename(&self, at: usize, from: (usize, &str), to: (usize, &str)) -> Result<(), Errno> {
        let (from, to) = ((self.dirs[from.0], from.1), (self.dirs[to.0], to.1));
        self.clients[at].rename(from, to).await.map(drop)
    }

    /// Waits until no MDT has locked an item for another one, and all records are forgotten.
    async fn is_quiet(&self) {
        let count = self.clients.len();
        wait_until(|| {
            let values = self.mdts.params.get("mdt.*.update_records");
            let is_quiet = |text: &str| text.contains("locked_names: 0") && text.contains("records: 0\n");
            values.len() == count && values.iter().all(|(_, text)| is_quiet(text))
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_moves_to_a_directory_of_another_mdt_and_back() {
    let t = Tree::start(2).await;
    let file = t.make(0, t.dirs[0], "file", FILE).await;
    t.rename(1, (0, "file"), (1, "moved")).await.unwrap();
    assert_eq!(
        (t.names(0).await, t.names(1).await),
        (vec![], vec!["moved".into()])
    );
    assert_eq!(t.links(0, file).await, [(t.dirs[1], "moved".into())]);
    let at_name = t.clients[1].getattr(t.dirs[1], "moved").await;
    let body: MdtBody = at_name.reply.get(2).unwrap();
    assert_eq!((at_name.fid(), body.mbo_valid & OBD_MD_MDS), (file, OBD_MD_MDS));
    // Inside of the other MDT's directory, by either MDT.
    t.rename(1, (1, "moved"), (1, "again")).await.unwrap();
    t.rename(0, (1, "again"), (1, "third")).await.unwrap();
    assert_eq!(t.links(0, file).await, [(t.dirs[1], "third".into())]);
    t.rename(0, (1, "third"), (0, "file")).await.unwrap();
    assert_eq!(
        (t.names(0).await, t.names(1).await),
        (vec!["file".into()], vec![])
    );
    assert_eq!((t.nlink(0, file).await, t.links(0, file).await.len()), (1, 1));
    t.is_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn links_on_several_mdts_count_and_the_last_removal_destroys_the_file() {
    let t = Tree::start(3).await;
    let file = t.make(0, t.dirs[0], "a", FILE).await;
    for mdt in [1, 2] {
        t.clients[mdt].link(file, t.dirs[mdt], "a").await.unwrap();
        let again = t.clients[mdt].link(file, t.dirs[mdt], "a").await;
        assert_eq!(again.err(), Some(Errno::EEXIST));
    }
    assert_eq!((t.nlink(0, file).await, t.links(0, file).await.len()), (3, 3));
    let unlink = async |at: usize, dir: usize| t.clients[at].unlink(t.dirs[dir], "a", false).await;
    assert_eq!(unlink(1, 1).await.err(), Some(Errno::EREMOTE));
    assert_eq!(unlink(0, 1).await.unwrap().mbo_nlink, 2);
    assert_eq!(unlink(0, 0).await.unwrap().mbo_nlink, 1);
    assert_eq!(t.links(0, file).await, [(t.dirs[2], "a".into())]);
    assert_eq!(unlink(0, 2).await.unwrap().mbo_nlink, 0);
    assert_eq!(t.attrs(0, file).await, Err(Errno::ENOENT));
    for mdt in 0..3 {
        assert_eq!(t.names(mdt).await, [""; 0]);
    }
    assert_eq!(
        t.clients[1].link(file, t.dirs[1], "b").await.err(),
        Some(Errno::ENOENT)
    );
    t.is_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_rename_replaces_a_file_of_any_mdt() {
    let t = Tree::start(3).await;
    // The replaced name is in the directory of MDT0001; its inode is on each MDT in turn.
    for victim_mdt in 0..3 {
        for at in 0..3 {
            let victim = t.make(victim_mdt, t.dirs[victim_mdt], "victim", FILE).await;
            if victim_mdt != 1 {
                t.rename(1, (victim_mdt, "victim"), (1, "victim")).await.unwrap();
            }
            let file = t.make(0, t.dirs[0], "file", FILE).await;
            t.rename(at, (0, "file"), (1, "victim")).await.unwrap();
            assert_eq!(t.attrs(victim_mdt, victim).await, Err(Errno::ENOENT));
            assert_eq!(t.links(0, file).await, [(t.dirs[1], "victim".into())]);
            assert_eq!(t.names(1).await, ["victim"], "by MDT{at}");
            t.clients[0].unlink(t.dirs[1], "victim", false).await.unwrap();
        }
    }
    t.is_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_rename_with_four_mdts_moves_and_replaces_directories() {
    let t = Tree::start(4).await;
    let moved = t.make(1, t.dirs[0], "moved", DIR).await;
    let inner = t.make(1, moved, "inner", DIR).await;
    let victim = t.make(3, t.dirs[2], "victim", DIR).await;
    let in_victim = t.make(3, victim, "in", DIR).await;
    let replace = async || t.rename(2, (0, "moved"), (2, "victim")).await;
    assert_eq!(replace().await, Err(Errno::ENOTEMPTY));
    t.clients[3].unlink(victim, "in", true).await.unwrap();
    assert!(t.attrs(3, in_victim).await.is_err());
    let nlink = async |mdt: usize| t.nlink(mdt, t.dirs[mdt]).await;
    assert_eq!((nlink(0).await, nlink(2).await), (3, 3));
    replace().await.unwrap();
    assert_eq!((nlink(0).await, nlink(2).await), (2, 3));
    assert_eq!(t.attrs(3, victim).await, Err(Errno::ENOENT));
    assert_eq!(t.links(1, moved).await, [(t.dirs[2], "victim".into())]);
    assert_eq!(t.clients[1].getattr(moved, "inner").await.fid(), inner);
    // No directory moves below itself.
    let below = t.clients[2].rename((t.dirs[2], "victim"), (inner, "x")).await;
    assert_eq!(below.err(), Some(Errno::EINVAL));
    let root_below = t.clients[0].rename((Fid::ROOT, "dir2"), (inner, "x")).await;
    assert_eq!(root_below.err(), Some(Errno::EINVAL));
    let above = t.clients[0].rename((moved, "inner"), (Fid::ROOT, "dir2")).await;
    assert_eq!(above.err(), Some(Errno::ENOTEMPTY));
    t.is_quiet().await;
}

#[tokio::test(start_paused = true)]
async fn failed_renames_change_nothing_and_leave_nothing_locked() {
    let t = Tree::start(2).await;
    let file = t.make(0, t.dirs[0], "file", FILE).await;
    t.make(1, t.dirs[1], "dir", DIR).await;
    t.make(0, t.dirs[0], "a", DIR).await;
    let other = t.make(1, t.dirs[1], "other", FILE).await;
    for (from, to, errno) in [
        ((0, "missing"), (1, "x"), Errno::ENOENT),
        ((0, "file"), (1, "dir"), Errno::EISDIR),
        ((0, "a"), (1, "other"), Errno::ENOTDIR),
    ] {
        for at in [0, 1] {
            assert_eq!(t.rename(at, from, to).await, Err(errno), "{from:?} to {to:?}");
        }
    }
    t.mdts.params.set("mdt.*.enable_remote_rename", "0").unwrap();
    assert_eq!(t.rename(1, (0, "file"), (1, "x")).await, Err(Errno::EXDEV));
    t.mdts.params.set("mdt.*.enable_remote_rename", "1").unwrap();
    assert_eq!((t.nlink(0, file).await, t.nlink(1, other).await), (1, 1));
    // Two names of one file: nothing happens.
    t.clients[1].link(file, t.dirs[1], "link").await.unwrap();
    t.rename(1, (0, "file"), (1, "link")).await.unwrap();
    assert_eq!((t.nlink(0, file).await, t.names(0).await.len()), (2, 2));
    t.is_quiet().await;
    t.rename(1, (0, "file"), (1, "other")).await.unwrap();
    assert_eq!(t.attrs(1, other).await, Err(Errno::ENOENT));
}

#[tokio::test(start_paused = true)]
async fn concurrent_renames_and_links_of_two_mdts_end() {
    let t = Tree::start(2).await;
    for n in 0..4 {
        t.make(n % 2, t.dirs[n % 2], &format!("f{n}"), FILE).await;
        t.make(n % 2, t.dirs[n % 2], &format!("d{n}"), DIR).await;
    }
    let rename = async |seed: usize| {
        for round in 0..12 {
            let n = (seed + round) % 4;
            let kind = if (seed + round).is_multiple_of(3) {
                "d"
            } else {
                "f"
            };
            let (from, to) = ((seed + round / 2) % 2, (seed + round / 3) % 2);
            let (name, new) = (format!("{kind}{n}"), format!("{kind}{}", (n + seed) % 4));
            // Another task may have moved it.
            let _ = t.rename((seed + round) % 2, (from, &name), (to, &new)).await;
        }
    };
    tokio::join!(rename(0), rename(1), rename(2), rename(3), rename(5), rename(6));
    t.is_quiet().await;
}
