//! `trusted.link`: the parents and names of an inode.
//!
//! The size of the attribute is limited. If a link does not fit, the attribute records the time of
//! the overflow instead. The name works, but searches by FID (`fid2path`, `rmfid`) do not find it.

use bytes::Bytes;
use wire::{Fid, linkea::LinkEa};

/// Maximum size of the attribute, bytes.
const MAX_BYTES: usize = 4096;
/// Bytes of a link besides its name.
const LINK_OVERHEAD: usize = 18;

/// The links in an attribute; none if it is malformed.
pub fn parse(ea: &[u8]) -> LinkEa {
    LinkEa::parse(ea).unwrap_or_default()
}

/// Adds a link to an attribute, or records the overflow at `now` (seconds since 1970).
pub fn add(ea: &[u8], parent: Fid, name: &[u8], now: i64) -> Bytes {
    let mut links = parse(ea);
    if ea.len() + LINK_OVERHEAD + name.len() > MAX_BYTES {
        links.overflow_time = now as u32;
    } else {
        links.links.push((parent, Bytes::copy_from_slice(name)));
    }
    links.build()
}

/// Removes a link from an attribute. Without links, the attribute is empty, because an orphan has
/// no such attribute (Lustre's test `sanity` 102q); but it keeps the time of an overflow.
pub fn remove(ea: &[u8], parent: Fid, name: &[u8]) -> Bytes {
    let mut links = parse(ea);
    links.remove(&parent, name);
    match links.links.is_empty() && links.overflow_time == 0 {
        true => Bytes::new(),
        false => links.build(),
    }
}

/// The parent of a directory, from its only link.
pub fn parent_of_dir(ea: &[u8]) -> Option<Fid> {
    parse(ea).links.first().map(|(parent, _)| *parent)
}

#[cfg(test)]
mod tests {
    use super::{MAX_BYTES, add, parent_of_dir, parse, remove};
    use wire::Fid;

    #[test]
    fn links_are_added_and_removed() {
        let a = add(b"", Fid::ROOT, b"a", 0);
        let ab = add(&a, Fid::ROOT, b"b", 0);
        assert_eq!(parse(&ab).links.len(), 2);
        assert_eq!(remove(&ab, Fid::ROOT, b"b"), a);
        assert_eq!(remove(&a, Fid::ROOT, b"other"), a);
        assert!(remove(&a, Fid::ROOT, b"a").is_empty());
        assert_eq!(parent_of_dir(&a), Some(Fid::ROOT));
        assert_eq!(parent_of_dir(b"garbage"), None);
    }

    #[test]
    fn links_that_do_not_fit_are_dropped_and_recorded_as_overflow() {
        let mut ea = add(b"", Fid::ROOT, b"first", 0);
        for i in 0..1000 {
            ea = add(&ea, Fid::ROOT, format!("name{i}").as_bytes(), 77);
        }
        assert!(ea.len() <= MAX_BYTES);
        assert_eq!(parse(&ea).overflow_time, 77);
        for (parent, name) in parse(&ea).links {
            ea = remove(&ea, parent, &name);
        }
        assert_eq!(parse(&ea).overflow_time, 77, "the record of the overflow remains");
    }
}
