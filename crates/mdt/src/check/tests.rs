//! Tests of each kind of damage: the check finds and describes the damage, and the repair leaves a
//! consistent store.

#![allow(clippy::unwrap_used)]

mod data;
mod several_mdts;

use bytes::Bytes;
use osd::{Batch, check::Progress};
use testbase::Wait;
use wire::{
    Errno, Fid, LU_SEQ_RANGE_MDT, LuSeqRange, MDS_FMODE_READ, OstIndex, Time, WireStruct, striping::LovLayout,
};

use super::{Examination, Repairer, examine};
use crate::{
    layout::{
        StripeObject, StripePlace, StripeRequest,
        composite::{self, ComponentRequest},
    },
    namespace::tests::Fixture,
    sequences::SUPER_SEQUENCE,
    store::{Change, Entry, Inode, S_IFDIR, S_IFREG, keys, links},
};

const ROOT: Fid = Fid::ROOT;

/// A tree of `/a`, `/a/b`, `/a/b/f`, `/link` (a hard link of `f`) and `/a/g`.
struct Tree {
    f: Fixture,
    a: Fid,
    b: Fid,
    /// `/a/b/f`.
    file: Fid,
    g: Fid,
}

impl Tree {
    fn new() -> Tree {
        let mut f = Fixture::new();
        let a = f.dir(ROOT, "a");
        let b = f.dir(a, "b");
        let file = f.file(b, "f");
        let g = f.file(a, "g");
        f.link(file, ROOT, "link").unwrap();
        Tree { f, a, b, file, g }
    }

    async fn examine(&self) -> Examination {
        examine(&self.f.store, 0, None, &Progress::default())
            .await
            .unwrap()
    }

    fn damage(&self, damage: impl FnOnce(&mut Batch)) {
        let mut batch = Batch::new();
        damage(&mut batch);
        self.f.store.index().apply(batch).unwrap();
    }

    fn change(&self, fid: Fid, change: impl FnOnce(&mut Inode)) {
        let mut inode = self.f.store.inode(fid).wait().unwrap();
        change(&mut inode);
        let mut mutations = Change::new();
        mutations.change_inode(fid, &inode);
        self.f.store.apply(mutations).wait().unwrap();
    }

    fn put_entry(&self, dir: Fid, name: &str, fid: Fid, kind: u32) {
        let mut change = Change::new();
        change.add_entry(dir, name.as_bytes(), Entry { fid, kind });
        self.f.store.apply(change).wait().unwrap();
    }

    /// The kind and place of each problem.
    async fn findings(&self) -> Vec<(&'static str, String)> {
        // A new store: cached inodes would hide the damage.
        let store = crate::store::Store::new(self.f.store.index().clone());
        let found = examine(&store, 0, None, &Progress::default()).await.unwrap();
        let mut findings = Vec::new();
        for problem in &found.problems {
            let finding = problem.finding(&store).await;
            findings.push((finding.kind, finding.place));
        }
        findings
    }

    /// The kind of each problem, sorted.
    async fn kinds(&self) -> Vec<&'static str> {
        let mut kinds: Vec<_> = self.findings().await.into_iter().map(|f| f.0).collect();
        kinds.sort_unstable();
        kinds
    }

    /// Repairs until no problem is left; returns the remaining paths.
    async fn repair_all(&self) -> Vec<String> {
        let store = std::sync::Arc::new(crate::store::Store::new(self.f.store.index().clone()));
        for _ in 0..5 {
            let found = examine(&store, 0, None, &Progress::default()).await.unwrap();
            if found.problems.is_empty() {
                return self.paths();
            }
            let mut repairer = Repairer::new(store.clone(), 0);
            for problem in &found.problems {
                repairer.repair(problem).await.unwrap();
            }
        }
        panic!("problems after five repairs: {:?}", self.findings().await);
    }

    /// All paths, sorted.
    fn paths(&self) -> Vec<String> {
        let store = crate::store::Store::new(self.f.store.index().clone());
        let (mut out, mut todo) = (Vec::new(), vec![(ROOT, String::new())]);
        while let Some((dir, path)) = todo.pop() {
            for (_, name, entry) in store
                .entries(dir, crate::store::NameHash(0), usize::MAX)
                .wait()
                .unwrap()
            {
                let path = format!("{path}/{}", String::from_utf8_lossy(&name));
                if entry.kind == S_IFDIR {
                    todo.push((entry.fid, path.clone()));
                }
                out.push(path);
            }
        }
        out.sort();
        out
    }
}

/// The paths of the undamaged tree.
const ALL_PATHS: [&str; 5] = ["/a", "/a/b", "/a/b/f", "/a/g", "/link"];

#[tokio::test]
async fn consistent_tree_has_no_problems_and_its_inodes_are_counted() {
    let mut t = Tree::new();
    t.f.open(t.g, MDS_FMODE_READ).unwrap();
    t.f.unlink(t.a, "g").unwrap();
    let found = t.examine().await;
    assert_eq!(found.problems, []);
    let counts = found.counts;
    assert_eq!(
        (counts.inodes, counts.directories, counts.names, counts.orphans),
        (5, 3, 4, 1)
    );
    // An open inode without a name also has an object.
    assert_eq!(found.claims.len(), 2);
    assert_eq!(found.file(&found.claims[0]), t.file);
}

#[tokio::test]
async fn dangling_names_are_removed() {
    let t = Tree::new();
    t.damage(|b| {
        b.delete(keys::inode(t.g));
    });
    assert_eq!(t.findings().await, [("dangling name", "/a/g".into())]);
    assert_eq!(t.repair_all().await, ["/a", "/a/b", "/a/b/f", "/link"]);
}

#[tokio::test]
async fn malformed_inode_is_removed_with_its_names() {
    let t = Tree::new();
    t.damage(|b| {
        b.put(keys::inode(t.file), "not an inode");
    });
    assert_eq!(t.kinds().await, ["unreadable record"]);
    assert_eq!(t.repair_all().await, ["/a", "/a/b", "/a/g"]);
}

#[tokio::test]
async fn directory_without_inode_is_restored_in_lost_found_with_its_entries() {
    let t = Tree::new();
    t.damage(|b| {
        b.delete(keys::inode(t.b));
    });
    assert_eq!(
        t.kinds().await,
        ["dangling name", "missing directory inode", "wrong link count"]
    );
    let paths = t.repair_all().await;
    let kept = format!("/lost+found/{:#x}:{:#x}:0x0/f", t.b.f_seq, t.b.f_oid);
    assert!(paths.contains(&kept), "{paths:?}");
    assert!(paths.contains(&"/link".into()) && !paths.contains(&"/a/b".into()));
}

#[tokio::test]
async fn inode_without_a_name_gets_one_in_lost_found() {
    let t = Tree::new();
    t.damage(|b| {
        b.delete(keys::entry(t.a, b"b")).delete(keys::entry(t.a, b"g"));
    });
    assert_eq!(t.kinds().await, ["no name", "no name", "wrong link count"]);
    let paths = t.repair_all().await;
    let kept = |fid: Fid, more: &str| format!("/lost+found/{:#x}:{:#x}:0x0{more}", fid.f_seq, fid.f_oid);
    assert!(
        paths.contains(&kept(t.g, "")) && paths.contains(&kept(t.b, "/f")),
        "{paths:?}"
    );
}

#[tokio::test]
async fn wrong_link_counts_are_corrected() {
    let t = Tree::new();
    t.change(t.file, |i| i.nlink = 7);
    t.change(t.a, |i| i.nlink = 2);
    assert_eq!(
        t.findings().await,
        [
            ("wrong link count", "/a".into()),
            ("wrong link count", "/a/b/f".into())
        ]
    );
    assert_eq!(t.repair_all().await, ALL_PATHS);
    assert_eq!(
        t.f.store
            .index()
            .get(&keys::inode(t.file))
            .wait()
            .unwrap()
            .map(|v| Inode::decode(&v).unwrap().nlink),
        Some(2)
    );
}

#[tokio::test]
async fn wrong_recorded_links_are_corrected() {
    let t = Tree::new();
    t.change(t.file, |i| i.links = links::add(b"", t.a, b"other", 0));
    t.change(t.b, |i| i.links = links::add(b"", ROOT, b"b", 0));
    t.change(t.g, |i| i.links = Bytes::from_static(b"garbage"));
    t.change(ROOT, |i| i.links = links::add(b"", t.b, b"root", 0));
    assert_eq!(t.kinds().await, ["wrong links"; 4]);
    assert_eq!(t.repair_all().await, ALL_PATHS);
}

#[tokio::test]
async fn links_that_overflowed_are_no_problem() {
    let mut t = Tree::new();
    for i in 0..300 {
        t.f.link(t.g, t.b, &format!("a-rather-long-name-{i}")).unwrap();
    }
    assert_eq!(t.findings().await, []);
    t.damage(|b| {
        b.delete(keys::entry(t.b, b"a-rather-long-name-3"));
    });
    assert_eq!(t.kinds().await, ["wrong link count", "wrong links"]);
    assert_eq!(t.repair_all().await.len(), ALL_PATHS.len() + 299);
}

#[tokio::test]
async fn directory_with_two_names_keeps_the_recorded_one() {
    let t = Tree::new();
    t.put_entry(ROOT, "again", t.b, S_IFDIR);
    t.put_entry(t.b, "root", ROOT, S_IFDIR);
    assert_eq!(
        t.kinds().await,
        [
            "second name of a directory",
            "second name of a directory",
            "wrong link count",
            "wrong link count"
        ]
    );
    assert_eq!(t.repair_all().await, ALL_PATHS);
}

#[tokio::test]
async fn directory_cycles_are_broken_and_kept_in_lost_found() {
    let mut t = Tree::new();
    let c = t.f.dir(t.b, "c");
    // Move /a/b below /a/b/c, which no rename does.
    t.damage(|b| {
        b.delete(keys::entry(t.a, b"b"));
    });
    t.put_entry(c, "b", t.b, S_IFDIR);
    assert!(
        t.kinds().await.contains(&"directory cycle"),
        "{:?}",
        t.kinds().await
    );
    let paths = t.repair_all().await;
    assert!(
        paths
            .iter()
            .any(|p| p.ends_with("/f") && p.starts_with("/lost+found/")),
        "{paths:?}"
    );
}

#[tokio::test]
async fn wrong_entry_type_is_corrected() {
    let t = Tree::new();
    t.put_entry(t.a, "g", t.g, S_IFDIR);
    assert_eq!(t.findings().await, [("wrong type", "/a/g".into())]);
    assert_eq!(t.repair_all().await, ALL_PATHS);
    assert_eq!(t.f.store.entry(t.a, b"g").wait().unwrap().unwrap().kind, S_IFREG);
}

#[tokio::test]
async fn invalid_names_are_removed_and_misplaced_entries_moved() {
    let t = Tree::new();
    let value =
        t.f.store
            .index()
            .get(&keys::entry(t.a, b"g"))
            .wait()
            .unwrap()
            .unwrap();
    let mut misplaced = keys::entries_from(t.a, crate::store::NameHash(77));
    misplaced.extend_from_slice(b"g");
    t.damage(|b| {
        b.delete(keys::entry(t.a, b"g")).put(misplaced, value.clone());
        b.put(keys::entry(t.b, b"x/y"), value.clone())
            .put(keys::entry(t.b, b".."), value);
        b.put(keys::entry(t.b, b"short"), "?");
    });
    assert_eq!(
        t.kinds().await,
        [
            "illegal name",
            "illegal name",
            "misplaced name",
            "unreadable record"
        ]
    );
    assert_eq!(t.repair_all().await, ALL_PATHS);
}

#[tokio::test]
async fn entries_below_a_file_are_removed() {
    let t = Tree::new();
    t.put_entry(t.g, "below-a-file", t.file, S_IFREG);
    assert_eq!(
        t.findings().await,
        [("entries below a non-directory", "/a/g".into())]
    );
    assert_eq!(t.repair_all().await, ALL_PATHS);
}

#[tokio::test]
async fn missing_root_is_created() {
    let t = Tree::new();
    t.damage(|b| {
        b.delete(keys::inode(ROOT));
    });
    assert_eq!(t.kinds().await, ["missing directory inode", "no root directory"]);
    let paths = t.repair_all().await;
    assert!(
        ALL_PATHS.iter().all(|p| paths.contains(&(*p).into())),
        "{paths:?}"
    );
}

#[tokio::test]
async fn mismatched_orphan_records_are_repaired() {
    let mut t = Tree::new();
    t.f.open(t.g, MDS_FMODE_READ).unwrap();
    t.f.unlink(t.a, "g").unwrap();
    t.damage(|b| {
        b.delete(keys::orphan(t.g)).put(keys::orphan(t.file), "");
        b.put(keys::orphan(Fid::new(0x2_0000_0401, 99, 0)), "")
            .put("o", "");
    });
    assert_eq!(
        t.kinds().await,
        [
            "stale orphan record",
            "stale orphan record",
            "unreadable record",
            "unreferenced inode"
        ]
    );
    assert_eq!(t.repair_all().await, ["/a", "/a/b", "/a/b/f", "/link"]);
}

#[tokio::test]
async fn xattrs_without_inode_or_flag_are_repaired() {
    let t = Tree::new();
    t.damage(|b| {
        b.put(keys::xattr(t.g, b"user.x"), "1");
        b.put(keys::xattr(Fid::new(0x2_0000_0401, 99, 0), b"user.x"), "1");
        b.put(keys::xattr(t.a, b""), "1");
    });
    assert_eq!(
        t.kinds().await,
        [
            "extended attributes without an inode",
            "extended attributes without the flag",
            "unreadable record"
        ]
    );
    assert_eq!(t.repair_all().await, ALL_PATHS);
    assert_eq!(t.f.store.xattr(t.g, b"user.x").wait().unwrap().unwrap(), "1");
}

#[tokio::test]
async fn invalid_layouts_and_acls_are_removed() {
    let t = Tree::new();
    let lov = t.f.store.inode(t.g).wait().unwrap().lov;
    t.change(t.file, |i| i.lov = lov);
    t.change(t.g, |i| {
        i.acl_access = Bytes::from_static(b"acl");
        i.lov = i.lov.slice(..40);
    });
    t.change(t.a, |i| {
        i.acl_default = Bytes::from_static(b"acl");
        i.lov = Bytes::from_static(b"layout");
    });
    assert_eq!(
        t.kinds().await,
        ["bad ACL", "bad ACL", "bad layout", "bad layout", "bad layout"]
    );
    assert_eq!(t.repair_all().await, ALL_PATHS);
}

#[tokio::test]
async fn objects_of_all_components_are_claimed_and_replaced_by_their_places() {
    let t = Tree::new();
    let object = |oid| StripeObject {
        ost: OstIndex(0),
        fid: Fid::new(0x2_4000_0400, oid, 0),
    };
    let place = |component, stripe| StripePlace { component, stripe };
    let component = |extent| ComponentRequest {
        extent,
        on_mdt: false,
        striping: StripeRequest {
            stripe_size: 1 << 20,
            stripe_count: 1,
            ..StripeRequest::default()
        },
    };
    let requests = [0..1 << 20, 1 << 20..2 << 20, 2 << 20..composite::EOF].map(component);
    let mut layout = composite::new_layout(t.file, &requests, 0);
    composite::add_objects(&mut layout, 0, &[object(100)]);
    composite::add_objects(&mut layout, 2, &[object(101), object(102)]);
    t.change(t.file, |i| i.lov = LovLayout::Composite(layout.clone()).build());
    let claims = async || {
        let examination = t.examine().await;
        assert_eq!(examination.problems, []);
        let own = examination
            .claims
            .iter()
            .filter(|c| examination.file(c) == t.file);
        own.map(|c| (c.place, c.object.1)).collect::<Vec<_>>()
    };
    let expected = [(place(0, 0), 100), (place(2, 0), 101), (place(2, 1), 102)];
    assert_eq!(claims().await, expected);
    let repairer = Repairer::new(t.f.store.clone(), 0);
    let replace = async |at, oid| repairer.replace_object(t.file, at, object(oid)).await;
    replace(place(2, 0), 103).await.unwrap();
    assert_eq!(claims().await, [expected[0], (place(2, 0), 103), expected[2]]);
    assert_eq!(replace(place(3, 0), 104).await, Err(Errno::EINVAL));
    assert_eq!(replace(place(2, 2), 104).await, Err(Errno::EINVAL));

    // A gap between components, and the layout of another file.
    layout.components[1].0.lcme_extent.e_start += 1;
    t.change(t.file, |i| i.lov = LovLayout::Composite(layout).build());
    let of_another = composite::new_layout(t.file, &requests, 0);
    t.change(t.g, |i| i.lov = LovLayout::Composite(of_another).build());
    assert_eq!(t.kinds().await, ["bad layout", "bad layout"]);
}

#[tokio::test]
async fn sequences_of_inodes_must_be_in_the_fldb_and_allocated() {
    let mut t = Tree::new();
    let unallocated = LuSeqRange {
        lsr_start: 0x2_0000_0400,
        lsr_end: 0x2_4000_0400,
        ..LuSeqRange::default()
    };
    t.damage(|b| {
        b.put(keys::setting(SUPER_SEQUENCE), unallocated.to_bytes());
    });
    assert_eq!(
        t.findings().await,
        [("unallocated sequence in use", "sequence 0x200000401".into())]
    );
    assert_eq!(t.repair_all().await, ALL_PATHS);
    t.damage(|b| {
        b.delete(keys::location(0x2_0000_0400))
            .put(keys::location(5), "no range");
    });
    assert_eq!(t.kinds().await, ["unknown sequence", "unreadable record"]);
    assert_eq!(t.repair_all().await, ALL_PATHS);
    // The range of another target: the check cannot know whether the FLDB or the inode is right.
    let other = LuSeqRange {
        lsr_index: 3,
        lsr_flags: LU_SEQ_RANGE_MDT,
        ..unallocated
    };
    t = Tree::new();
    t.damage(|b| {
        b.put(keys::location(unallocated.lsr_start), other.to_bytes());
    });
    assert_eq!(t.kinds().await, ["unknown sequence"]);
    assert_eq!(
        t.examine().await.problems[0].finding(&t.f.store).await.repair,
        None
    );
}

#[tokio::test]
async fn unknown_records_are_reported_and_kept() {
    let t = Tree::new();
    t.damage(|b| {
        b.put("zebra", "stripes");
    });
    assert_eq!(t.findings().await, [("unknown record", "record zebra".into())]);
}

#[tokio::test]
async fn dot_lustre_needs_no_entry_in_the_root() {
    let t = Tree::new();
    let make = || {
        let store = crate::store::Store::new(t.f.store.index().clone());
        crate::store::dot_lustre::make(&store, (0, 0), Time::default())
            .wait()
            .unwrap();
    };
    make();
    assert_eq!(t.findings().await, []);
    let mut change = Change::new();
    change.remove_entry(Fid::DOT_LUSTRE, b"fid");
    t.f.store.apply(change).wait().unwrap();
    assert_eq!(t.repair_all().await, ALL_PATHS, "not moved to lost+found");
    make();
    assert_eq!(t.findings().await, []);
}
