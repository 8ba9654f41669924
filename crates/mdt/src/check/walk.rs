//! The walks over the store, one per kind of record.

use std::collections::BTreeMap;

use bytes::Bytes;
use osd::{OsdError, check::Progress, check::for_each_entry};
use wire::{Fid, OstId, linkea::LinkEa, striping::LovLayout};

use super::{
    Claim, Examination, Problem,
    problem::InodePart,
    ranges::Ranges,
    remote::RemoteLink,
    table::{HAS_ENTRIES, HAS_XATTRS, LINK_SUM_INVALID, MALFORMED, ORPHAN, REMOTE_NAME, Row},
};
use crate::{
    acl, dir_layout,
    layout::{self, LayoutRequest, composite},
    namespace::check_name,
    osp::pool::LastUsedId,
    store::{
        Entry, Inode, NameHash, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK, Store, Work,
        decode_entry, dot_lustre, keys,
    },
};

/// Valid file types (`S_IFMT`).
const KINDS: [u32; 7] = [S_IFIFO, S_IFCHR, S_IFDIR, S_IFBLK, S_IFREG, S_IFLNK, S_IFSOCK];
/// First bytes of the keys of known records ([`keys`]).
const KNOWN_TAGS: &[u8] = b"bdfimoqrux";

pub(super) fn report_malformed(
    examination: &mut Examination,
    key: Bytes,
    record: &'static str,
    reason: impl ToString,
) {
    let reason = reason.to_string();
    examination
        .problems
        .push(Problem::BadRecord { key, record, reason });
}

/// Walks the inodes: checks their records, ACLs and layouts, and that their sequences belong to
/// this MDT and are allocated.
pub(super) async fn inodes(
    store: &Store,
    ranges: &Ranges,
    progress: &Progress,
    examination: &mut Examination,
) -> Result<(), OsdError> {
    examination.fldb = ranges.fldb.clone();
    for (key, reason) in &ranges.malformed {
        report_malformed(examination, key.clone(), "sequences", reason);
    }
    let mut last_seq = None;
    for_each_entry(&**store.index(), keys::INODES, progress, |key, value| {
        let Some(fid) = keys::fid(&key) else {
            report_malformed(examination, key, "inode", "the key is not a FID");
            return Ok(());
        };
        if last_seq.replace(fid.f_seq) != Some(fid.f_seq) {
            check_sequence(ranges, fid, examination);
        }
        let inode = Inode::decode(&value)
            .map_err(|e| e.to_string())
            .and_then(|inode| match KINDS.contains(&inode.kind()) {
                true => Ok(inode),
                false => Err(format!(
                    "expected a mode with a valid file type, found {:o}",
                    inode.mode
                )),
            });
        let row = match inode {
            Ok(inode) => inode_row(fid, &inode, ranges, examination),
            Err(reason) => {
                report_malformed(examination, key, "inode", reason);
                let mut row = Row::new(fid, 0, 0);
                row.set(MALFORMED);
                row
            }
        };
        examination.counts.inodes += 1;
        examination.counts.directories += u64::from(row.is_dir());
        examination.table.rows.push(row);
        Ok(())
    })
    .await
}

/// Checks that an inode's sequence belongs to this MDT and is allocated.
fn check_sequence(ranges: &Ranges, fid: Fid, examination: &mut Examination) {
    let seq = fid.f_seq;
    match ranges.find(seq) {
        None => examination
            .problems
            .push(Problem::UnknownSequence { seq, owner: None }),
        Some(range) if !ranges.is_own(range) => {
            let owner = Some(*range);
            examination.problems.push(Problem::UnknownSequence { seq, owner });
        }
        Some(_) if ranges.is_unallocated(seq) => {
            examination.problems.push(Problem::UnallocatedSequence { seq })
        }
        Some(_) => {}
    }
}

/// The row of an inode, before names are counted. Checks its ACLs and layout, and adds its claims.
fn inode_row(fid: Fid, inode: &Inode, ranges: &Ranges, examination: &mut Examination) -> Row {
    let mut row = Row::new(fid, inode.mode, inode.nlink);
    if inode.has_xattrs {
        row.set(HAS_XATTRS);
    }
    let links = LinkEa::parse(&inode.links);
    // After an overflow, a name on another MDT may not be recorded.
    let may_have_more = |ea: &LinkEa| ea.overflow_time != 0 && ranges.has_other_mdts();
    if links
        .as_ref()
        .is_ok_and(|ea| may_have_more(ea) || ea.links.iter().any(|(parent, _)| ranges.is_remote(*parent)))
    {
        row.set(REMOTE_NAME);
        let links = links.iter().flat_map(|ea| &ea.links);
        for (dir, name) in links.filter(|(parent, _)| ranges.is_remote(*parent)) {
            let (dir, name) = (*dir, name.clone());
            examination.remote.links.insert(RemoteLink { fid, dir, name });
        }
    }
    match links {
        Ok(links) if links.overflow_time == 0 => {
            for (parent, name) in &links.links {
                row.link_difference = row
                    .link_difference
                    .wrapping_add(examination.table.name_hash(*parent, name));
            }
        }
        Err(_) if inode.links.is_empty() => {}
        _ => row.set(LINK_SUM_INVALID),
    }
    let mut report = |part, reason: String| examination.problems.push(Problem::BadPart { fid, part, reason });
    for (part, acl) in [
        (InodePart::AccessAcl, &inode.acl_access),
        (InodePart::DefaultAcl, &inode.acl_default),
    ] {
        if !acl.is_empty()
            && let Err(e) = acl::check(acl)
        {
            report(part, format!("{} malformed bytes: {e}", acl.len()));
        }
    }
    if inode.is_dir() && !inode.lov.is_empty() && LayoutRequest::parse(&inode.lov).is_err() {
        report(InodePart::Layout, format!("{} malformed bytes", inode.lov.len()));
    }
    let default = &inode.default_lmv;
    let is_valid =
        default.is_empty() || (inode.is_dir() && matches!(dir_layout::parse(default), Ok(Some(_))));
    if !is_valid {
        report(
            InodePart::DefaultDirLayout,
            format!("{} malformed bytes", default.len()),
        );
    }
    if inode.is_file() && !inode.lov.is_empty() {
        match claims_of(fid, examination.table.rows.len() as u32, &inode.lov) {
            Ok(claims) => examination.claims.extend(claims),
            Err(reason) => report(InodePart::Layout, reason),
        }
    }
    row
}

/// The claims of a file's layout; `file` is the file's row. The error is the reason that the layout
/// is invalid.
fn claims_of(fid: Fid, file: u32, lov: &[u8]) -> Result<Vec<Claim>, String> {
    let owners: Vec<OstId> = match LovLayout::parse(lov).map_err(|e| e.to_string())? {
        LovLayout::Foreign(..) => return Ok(Vec::new()),
        LovLayout::Plain(plain) => {
            if usize::from(plain.stripe_count) != plain.objects.len() || plain.objects.is_empty() {
                let (count, objects) = (plain.stripe_count, plain.objects.len());
                return Err(format!("a layout of {count} stripes with {objects} objects"));
            }
            vec![plain.oi]
        }
        LovLayout::Composite(layout) => {
            composite::check(&layout)?;
            layout.components.iter().map(|(_, plain)| plain.oi).collect()
        }
    };
    let owners = owners.iter().map(|oi| Fid::new(oi.oi_seq, oi.oi_id as u32, 0));
    if let Some(owner) = owners.into_iter().find(|owner| *owner != fid) {
        return Err(format!("the layout of file {owner}"));
    }
    let objects = layout::placed_objects(lov).map_err(|e| e.to_string())?;
    let claim = |(place, object): (layout::StripePlace, layout::StripeObject)| Claim {
        ost: object.ost,
        object: (object.fid.f_seq, object.fid.f_oid),
        place,
        file,
    };
    Ok(objects.into_iter().map(claim).collect())
}

/// Walks the entries: each name must be valid, match its key's hash, and lead to an inode of the
/// same type, or to an inode of another MDT.
pub(super) async fn names(
    store: &Store,
    ranges: &Ranges,
    progress: &Progress,
    examination: &mut Examination,
) -> Result<(), OsdError> {
    // The directory of the last entry, and its row.
    let mut dir: Option<(Fid, Option<usize>)> = None;
    for_each_entry(&**store.index(), keys::ENTRIES, progress, |key, value| {
        let (Some(fid), Some((hash, name))) = (keys::fid(&key), keys::entry_name(&key)) else {
            report_malformed(examination, key, "name", "the key is not that of an entry");
            return Ok(());
        };
        if dir.is_none_or(|(last, _)| last != fid) {
            dir = Some((fid, directory_row(fid, examination)));
        }
        let dir_row = dir.and_then(|(_, row)| row);
        examination.counts.names += 1;
        let entry = match decode_entry(&value) {
            Ok(entry) => entry,
            Err(e) => {
                report_malformed(examination, key, "name", e);
                return Ok(());
            }
        };
        if let Err(reason) = check_name(&name) {
            let reason = format!("{reason}");
            examination.problems.push(Problem::BadName {
                dir: fid,
                key,
                reason,
            });
            return Ok(());
        }
        if hash != NameHash::of(&name) {
            examination
                .problems
                .push(Problem::MisplacedEntry { dir: fid, key, entry });
        }
        let may_be_directory = dir_row.is_none_or(|row| {
            let row = &examination.table.rows[row];
            row.has(MALFORMED) || row.is_dir()
        });
        if may_be_directory {
            count_name((dir_row, fid), name, entry, ranges, examination);
        }
        Ok(())
    })
    .await?;
    count_dot_lustre_name(examination);
    Ok(())
}

/// Counts the name of `.lustre`. It has no record, and the root's link count does not include it.
fn count_dot_lustre_name(examination: &mut Examination) {
    let (dir, name) = dot_lustre::own_name();
    let hash = examination.table.name_hash(dir, &Bytes::from_static(name));
    let (root, dot) = (
        examination.table.find(dir),
        examination.table.find(Fid::DOT_LUSTRE),
    );
    if let Some(dot) = dot {
        let row = &mut examination.table.rows[dot];
        row.names += 1;
        row.link_difference = row.link_difference.wrapping_sub(hash);
        row.parent = root.map_or(super::table::NO_ROW, |root| root as u32);
    }
}

/// The row of an entry's directory; reports a FID that is no directory.
fn directory_row(dir: Fid, examination: &mut Examination) -> Option<usize> {
    let index = examination.table.find(dir);
    match index.map(|index| &mut examination.table.rows[index]) {
        None => examination
            .problems
            .push(Problem::EntriesWithoutDirectory { dir, kind: None }),
        Some(row) if row.has(MALFORMED) => {}
        Some(row) if row.is_dir() => row.set(HAS_ENTRIES),
        Some(row) => {
            let kind = Some(row.kind());
            examination
                .problems
                .push(Problem::EntriesWithoutDirectory { dir, kind });
        }
    }
    index
}

/// Counts a name in the rows of its inode and its directory; reports a dangling name or a wrong
/// type.
fn count_name(
    (dir_row, dir): (Option<usize>, Fid),
    name: Bytes,
    entry: Entry,
    ranges: &Ranges,
    examination: &mut Examination,
) {
    let fid = entry.fid;
    let hash = examination.table.name_hash(dir, &name);
    let Some(child) = examination.table.find(fid) else {
        if ranges.is_remote(fid) {
            if let Some(index) = dir_row.filter(|_| entry.kind == S_IFDIR) {
                examination.table.rows[index].subdirs += 1;
            }
            examination.remote.names.insert(RemoteLink { fid, dir, name });
            return;
        }
        examination
            .problems
            .push(Problem::DanglingName { dir, name, fid });
        return;
    };
    let row = &mut examination.table.rows[child];
    row.names += 1;
    row.link_difference = row.link_difference.wrapping_sub(hash);
    if row.has(MALFORMED) {
        return;
    }
    let is_dir = row.is_dir();
    if is_dir && row.names == 1 {
        row.parent = dir_row.map_or(super::table::NO_ROW, |index| index as u32);
    }
    if row.kind() != entry.kind {
        let kind = row.kind();
        examination.problems.push(Problem::WrongType {
            dir,
            name,
            entry,
            kind,
        });
    }
    if is_dir && let Some(index) = dir_row {
        examination.table.rows[index].subdirs += 1;
    }
}

/// Walks the extended attributes: each must belong to an inode with the flag for them.
pub(super) async fn xattrs(
    store: &Store,
    progress: &Progress,
    examination: &mut Examination,
) -> Result<(), OsdError> {
    let mut last_fid = None;
    for_each_entry(&**store.index(), keys::XATTRS, progress, |key, _| {
        let Some(fid) = keys::fid(&key).filter(|_| !keys::xattr_name(&key).is_empty()) else {
            report_malformed(
                examination,
                key,
                "attribute",
                "the key is not that of an extended attribute",
            );
            return Ok(());
        };
        if last_fid.replace(fid) == Some(fid) {
            return Ok(());
        }
        let row = examination
            .table
            .find(fid)
            .map(|index| &examination.table.rows[index]);
        match row {
            None => examination.problems.push(Problem::XattrsWithoutInode { fid }),
            Some(row) if !row.has(MALFORMED) && !row.has(HAS_XATTRS) => {
                examination.problems.push(Problem::UnflaggedXattrs { fid });
            }
            Some(_) => {}
        }
        Ok(())
    })
    .await
}

/// Walks the orphan records: each must belong to an inode. Marks these inodes.
pub(super) async fn orphans(
    store: &Store,
    progress: &Progress,
    examination: &mut Examination,
) -> Result<(), OsdError> {
    for_each_entry(&**store.index(), keys::ORPHANS, progress, |key, _| {
        let Some(fid) = keys::fid(&key) else {
            report_malformed(examination, key, "orphan", "the key is not a FID");
            return Ok(());
        };
        match examination.table.find(fid) {
            Some(index) => examination.table.rows[index].set(ORPHAN),
            None => examination
                .problems
                .push(Problem::StaleOrphanRecord { fid, exists: false }),
        }
        Ok(())
    })
    .await
}

/// Walks the work queued for OSTs, and the records of their objects ([`LastUsedId`]).
pub(super) async fn work(
    store: &Store,
    progress: &Progress,
    examination: &mut Examination,
) -> Result<(), OsdError> {
    for_each_entry(&**store.index(), keys::WORK, progress, |key, value| {
        match (keys::work_parts(&key), Work::decode(&value)) {
            (Some((ost, object)), Ok(Work::Destroy)) => examination.destroy_queue.push((ost, object)),
            (Some(_), Ok(_)) => {}
            _ => report_malformed(examination, key, "work for an OST", "the record is malformed"),
        }
        Ok::<(), OsdError>(())
    })
    .await?;
    examination.destroy_queue.sort_unstable();
    let mut last_used = BTreeMap::new();
    for_each_entry(&**store.index(), keys::OBJECTS, progress, |key, value| {
        match (keys::objects_ost(&key), LastUsedId::decode(&value)) {
            (Some(ost), Ok(record)) => {
                last_used.insert(ost, (record.seq, record.used));
            }
            _ => report_malformed(examination, key, "objects of an OST", "the record is malformed"),
        }
        Ok::<(), OsdError>(())
    })
    .await?;
    examination.last_used = last_used;
    Ok(())
}

/// Reports the records of unknown kinds.
pub(super) async fn unknown(
    store: &Store,
    progress: &Progress,
    examination: &mut Examination,
) -> Result<(), OsdError> {
    for tag in osd::USER_KEYS.filter(|tag| !KNOWN_TAGS.contains(tag)) {
        for_each_entry::<OsdError>(&**store.index(), &[tag], progress, |key, _| {
            examination.problems.push(Problem::UnknownRecord { key });
            Ok(())
        })
        .await?;
    }
    Ok(())
}
