//! The extended attribute `trusted.link`: the names of a file, each with its parent directory. The
//! MDT uses it to resolve a FID to a path.
//!
//! The header is little-endian; lengths and FIDs of the entries are big-endian.

use crate::codec::{Reader, Result, WireError, Writer};
use crate::consts::mdt::LINK_EA_MAGIC;
use crate::ea::{LinkEaEntry, LinkEaHeader};
use crate::ids::Fid;
use crate::layout::WireStruct;
use bytes::Bytes;

/// The names of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkEa {
    /// Parent directory and name of each link.
    pub links: Vec<(Fid, Bytes)>,
    /// Time at which the server left out a name because there were too many, in seconds since 1970;
    /// 0 if the list is complete.
    pub overflow_time: u32,
}

impl LinkEa {
    /// Parses the attribute.
    ///
    /// # Errors
    ///
    /// A wrong magic, or a header or entry that is too short or reaches beyond the end.
    pub fn parse(bytes: &[u8]) -> Result<LinkEa> {
        let mut r = Reader::new("link_ea", bytes);
        let head = LinkEaHeader::read(&mut r)?;
        if head.leh_magic != LINK_EA_MAGIC {
            let (expected, found) = (LINK_EA_MAGIC.into(), head.leh_magic.into());
            return Err(WireError::Magic {
                what: "link_ea_header",
                expected,
                found,
            });
        }
        let mut links = Vec::new();
        for _ in 0..head.leh_reccount {
            let entry = LinkEaEntry::read(&mut r)?;
            let len = usize::from(u16::from_be_bytes(entry.lee_reclen));
            let Some(name_len) = len.checked_sub(LinkEaEntry::SIZE) else {
                return Err(WireError::Value {
                    what: "lee_reclen",
                    expected: "at least 18",
                    found: len as u64,
                });
            };
            links.push((
                fid_from_be(&entry.lee_parent_fid)?,
                Bytes::copy_from_slice(r.take(name_len)?),
            ));
        }
        Ok(LinkEa {
            links,
            overflow_time: head.leh_overflow_time,
        })
    }

    /// The bytes of the attribute.
    pub fn build(&self) -> Bytes {
        let len: usize = self
            .links
            .iter()
            .map(|(_, name)| LinkEaEntry::SIZE + name.len())
            .sum();
        let mut w = Writer::with_capacity(LinkEaHeader::SIZE + len);
        LinkEaHeader {
            leh_magic: LINK_EA_MAGIC,
            leh_reccount: self.links.len() as u32,
            leh_len: (LinkEaHeader::SIZE + len) as u64,
            leh_overflow_time: self.overflow_time,
            leh_padding: 0,
        }
        .write(&mut w);
        for (parent, name) in &self.links {
            let reclen = (LinkEaEntry::SIZE + name.len()) as u16;
            LinkEaEntry {
                lee_reclen: reclen.to_be_bytes(),
                lee_parent_fid: fid_to_be(parent),
            }
            .write(&mut w);
            w.put(name);
        }
        w.finish()
    }

    /// Removes `name` in the directory `parent`; `false` if the list does not have it.
    pub fn remove(&mut self, parent: &Fid, name: &[u8]) -> bool {
        let index = self.links.iter().position(|(p, n)| p == parent && n == name);
        index.map(|i| self.links.remove(i)).is_some()
    }
}

fn fid_from_be(b: &[u8; 16]) -> Result<Fid> {
    let mut r = Reader::new("lee_parent_fid", b);
    let seq = u64::from_be_bytes(r.array()?);
    Ok(Fid::new(
        seq,
        u32::from_be_bytes(r.array()?),
        u32::from_be_bytes(r.array()?),
    ))
}

fn fid_to_be(fid: &Fid) -> [u8; 16] {
    (u128::from(fid.f_seq) << 64 | u128::from(fid.f_oid) << 32 | u128::from(fid.f_ver)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::LinkEa;
    use crate::Fid;
    use bytes::Bytes;
    use proptest::prelude::{any, prop, proptest};

    #[test]
    fn a_removed_name_is_not_found_again() {
        let mut ea = LinkEa {
            links: vec![
                (Fid::ROOT, Bytes::from_static(b"a")),
                (Fid::ROOT, Bytes::from_static(b"b")),
            ],
            overflow_time: 0,
        };
        assert!(ea.remove(&Fid::ROOT, b"a"));
        assert!(!ea.remove(&Fid::ROOT, b"a"));
        assert_eq!(ea.links.len(), 1);
    }

    proptest! {
        #[test]
        fn names_survive_a_round_trip(names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20), seq: u64, oid: u32) {
            let links = names.into_iter().map(|n| (Fid::new(seq, oid, 0), Bytes::from(n))).collect();
            let ea = LinkEa { links, overflow_time: 0 };
            assert_eq!(LinkEa::parse(&ea.build()), Ok(ea));
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 4..200)) {
            bytes[..4].copy_from_slice(&0x11ea_f1dfu32.to_le_bytes());
            let _ = LinkEa::parse(&bytes);
        }
    }
}
