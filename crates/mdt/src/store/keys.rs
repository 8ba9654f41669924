//! The keys of the target's index. Numbers in keys are big-endian, so keys sort like the numbers.
//! In the table, (n) is the length of a field in bytes; a FID has 16 bytes.
//!
//! | key | value |
//! |---|---|
//! | `i` fid | inode ([`super::Inode`]) |
//! | `d` parent-fid hash(8) name | child: fid, type |
//! | `x` fid name | extended attribute |
//! | `b` fid | attributes of the file's data on this MDT ([`super::FileData`]) |
//! | `b` fid block(4) | a block of that data |
//! | `o` fid | empty: the inode was removed while open |
//! | `q` ost(4) transno(8) object-fid | work for an OST, sent once its transaction is on disk |
//! | `u` ost(4) | the OST's object sequence and the highest id that may be in use |
//! | `f` start(8) | a range of sequences and the target that it belongs to |
//! | `m` name | the target's own settings |
//! | `r` coordinator(4) number(8) | the update record of an operation on several MDTs |

use bytes::Bytes;
use wire::{Fid, OstIndex, Transno};

/// The hash that orders a directory's entries; it also identifies the lock of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameHash(pub u64);

/// The hash of ".", which comes first in a directory.
pub const HASH_DOT: NameHash = NameHash(0);
/// The hash of "..", which comes second in a directory.
pub const HASH_DOTDOT: NameHash = NameHash(1);

impl NameHash {
    /// The hash of a name: FNV-1a with a final mix, 63 bits. It is above the hashes of "." and
    /// "..".
    pub fn of(name: &[u8]) -> NameHash {
        const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
        const FNV_PRIME: u64 = 0x100_0000_01b3;
        /// Odd multiplier of the final mix.
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut hash = FNV_OFFSET;
        for byte in name {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
        }
        hash = (hash ^ hash >> 32).wrapping_mul(MIX);
        NameHash(((hash ^ hash >> 29) >> 1).max(HASH_DOTDOT.0 + 1))
    }
}

/// Length of the tag and the FID in a key, bytes.
pub const FID_KEY_BYTES: usize = 1 + 16;

/// Length of the tag and the OST in a key, bytes.
pub const OST_KEY_BYTES: usize = 1 + 4;

/// A key of a tag and a FID, with capacity for `rest_len` bytes more.
fn key_with_fid(tag: u8, fid: Fid, rest_len: usize) -> Vec<u8> {
    let mut key = Vec::with_capacity(FID_KEY_BYTES + rest_len);
    key.push(tag);
    push_fid(&mut key, fid);
    key
}

fn push_fid(key: &mut Vec<u8>, fid: Fid) {
    key.extend_from_slice(&fid.f_seq.to_be_bytes());
    key.extend_from_slice(&fid.f_oid.to_be_bytes());
    key.extend_from_slice(&fid.f_ver.to_be_bytes());
}

/// Decodes a FID from 16 big-endian bytes.
fn fid_of(bytes: &[u8]) -> Option<Fid> {
    let (seq, rest) = bytes.split_first_chunk::<8>()?;
    let (oid, rest) = rest.split_first_chunk::<4>()?;
    let ver = rest.first_chunk::<4>()?;
    Some(Fid::new(
        u64::from_be_bytes(*seq),
        u32::from_be_bytes(*oid),
        u32::from_be_bytes(*ver),
    ))
}

/// The prefix of inodes.
pub const INODES: &[u8] = b"i";

/// The key of an inode.
pub fn inode(fid: Fid) -> Bytes {
    key_with_fid(b'i', fid, 0).into()
}

/// The prefix of entries.
pub const ENTRIES: &[u8] = b"d";

/// The lowest possible key of a directory's entries from `hash` on.
pub fn entries_from(dir: Fid, hash: NameHash) -> Vec<u8> {
    entry_at(dir, hash, b"")
}

/// The key of an entry.
pub fn entry(dir: Fid, name: &[u8]) -> Bytes {
    entry_at(dir, NameHash::of(name), name).into()
}

fn entry_at(dir: Fid, hash: NameHash, name: &[u8]) -> Vec<u8> {
    let mut key = key_with_fid(b'd', dir, 8 + name.len());
    key.extend_from_slice(&hash.0.to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// The hash and name in an entry's key.
pub fn entry_name(key: &Bytes) -> Option<(NameHash, Bytes)> {
    let hash = key.get(FID_KEY_BYTES..)?.first_chunk::<8>()?;
    Some((
        NameHash(u64::from_be_bytes(*hash)),
        key.slice(FID_KEY_BYTES + 8..),
    ))
}

/// The prefix of extended attributes.
pub const XATTRS: &[u8] = b"x";

/// The key of an extended attribute; with an empty name, the prefix of an inode's attributes.
pub fn xattr(fid: Fid, name: &[u8]) -> Bytes {
    let mut key = key_with_fid(b'x', fid, name.len());
    key.extend_from_slice(name);
    key.into()
}

/// The name in an extended attribute's key.
pub fn xattr_name(key: &Bytes) -> Bytes {
    key.slice(FID_KEY_BYTES.min(key.len())..)
}

/// The prefix of the data of files.
pub const DATA: &[u8] = b"b";

/// The key of the attributes of a file's data, and the prefix of the keys of its blocks.
pub fn data(fid: Fid) -> Bytes {
    key_with_fid(b'b', fid, 0).into()
}

/// The key of a block of a file's data.
pub fn data_block(fid: Fid, block: u32) -> Bytes {
    let mut key = key_with_fid(b'b', fid, 4);
    key.extend_from_slice(&block.to_be_bytes());
    key.into()
}

/// The number in the key of a block.
pub fn block(key: &[u8]) -> Option<u32> {
    let number = key.get(FID_KEY_BYTES..)?.try_into().ok()?;
    Some(u32::from_be_bytes(number))
}

/// The prefix of orphan records.
pub const ORPHANS: &[u8] = b"o";

/// The key of an orphan record.
pub fn orphan(fid: Fid) -> Bytes {
    key_with_fid(b'o', fid, 0).into()
}

/// The FID in the key of an inode, entry, attribute or orphan record; for an entry, its directory.
pub fn fid(key: &[u8]) -> Option<Fid> {
    fid_of(key.get(1..)?)
}

/// The prefix of queued work.
pub const WORK: &[u8] = b"q";

/// Length of the key of queued work, bytes.
const WORK_BYTES: usize = OST_KEY_BYTES + 8 + 16;

/// The lowest possible key of the work queued for an OST by transactions from `transno` on.
pub fn work_from(ost: OstIndex, transno: Transno) -> Vec<u8> {
    let mut key = Vec::with_capacity(WORK_BYTES);
    key.push(b'q');
    key.extend_from_slice(&ost.0.to_be_bytes());
    key.extend_from_slice(&transno.0.to_be_bytes());
    key
}

/// The key of work on one object, queued by a transaction.
pub fn work(ost: OstIndex, transno: Transno, object: Fid) -> Bytes {
    let mut key = work_from(ost, transno);
    push_fid(&mut key, object);
    key.into()
}

/// The object in the key of queued work.
pub fn work_object(key: &[u8]) -> Option<Fid> {
    fid_of(key.get(OST_KEY_BYTES + 8..)?)
}

/// The OST and the object in the key of queued work.
pub fn work_parts(key: &[u8]) -> Option<(OstIndex, Fid)> {
    Some((objects_ost(key)?, work_object(key)?))
}

/// The prefix of the records of OSTs' object sequences.
pub const OBJECTS: &[u8] = b"u";

/// The key of an OST's object sequence.
pub fn objects(ost: OstIndex) -> Bytes {
    let mut key = OBJECTS.to_vec();
    key.extend_from_slice(&ost.0.to_be_bytes());
    key.into()
}

/// The OST in the key of an object sequence or of queued work.
pub fn objects_ost(key: &[u8]) -> Option<OstIndex> {
    let index = key.get(1..)?.first_chunk::<4>()?;
    Some(OstIndex(u32::from_be_bytes(*index)))
}

/// The prefix of the FLDB.
pub const LOCATIONS: &[u8] = b"f";

/// The key of a range of sequences.
pub fn location(start: u64) -> Bytes {
    let mut key = LOCATIONS.to_vec();
    key.extend_from_slice(&start.to_be_bytes());
    key.into()
}

/// The prefix of update records.
pub const UPDATES: &[u8] = b"r";

/// The key of the update record with this coordinator and number.
pub fn update(coordinator: u32, number: u64) -> Bytes {
    let mut key = UPDATES.to_vec();
    key.extend_from_slice(&coordinator.to_be_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    key.into()
}

/// The coordinator and the number in the key of an update record.
pub fn update_parts(key: &[u8]) -> Option<(u32, u64)> {
    let (coordinator, rest) = key.get(1..)?.split_first_chunk::<4>()?;
    let number = rest.first_chunk::<8>()?;
    Some((u32::from_be_bytes(*coordinator), u64::from_be_bytes(*number)))
}

/// The key of a setting.
pub fn setting(name: &str) -> Bytes {
    [b"m", name.as_bytes()].concat().into()
}

#[cfg(test)]
mod tests {
    use super::{HASH_DOTDOT, NameHash, entries_from, entry, entry_name, fid, orphan, work, work_parts};
    use wire::{Fid, MDS_DIR_END_OFF, OstIndex, Transno};

    #[test]
    fn entries_sort_by_hash_within_their_directory() {
        let (a, b) = (Fid::new(0x2_0000_0400, 1, 0), Fid::new(0x2_0000_0400, 2, 0));
        let mut keys: Vec<_> = (0..100).map(|i| entry(a, format!("f{i}").as_bytes())).collect();
        keys.sort();
        let hashes: Vec<_> = keys.iter().filter_map(entry_name).map(|(h, _)| h).collect();
        assert!(hashes.is_sorted() && hashes.len() == 100);
        assert!(keys.iter().all(|k| k[..] >= entries_from(a, NameHash(0))[..]));
        assert!(keys.iter().all(|k| k[..] < entries_from(b, NameHash(0))[..]));
    }

    #[test]
    fn hashes_are_between_the_dots_and_the_end() {
        for i in 0..10_000u32 {
            let hash = NameHash::of(&i.to_le_bytes());
            assert!(hash > HASH_DOTDOT && hash.0 < MDS_DIR_END_OFF / 2);
        }
    }

    #[test]
    fn keys_round_trip_their_fid() {
        let expected = Fid::new(0x2_0000_0401, 7, 1);
        assert_eq!(fid(&orphan(expected)), Some(expected));
        assert_eq!(
            work_parts(&work(OstIndex(3), Transno(9), expected)),
            Some((OstIndex(3), expected))
        );
        assert_eq!(fid(b"o"), None);
    }
}
