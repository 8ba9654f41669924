//! POSIX access control lists in the format of extended attributes: a version, then entries of tag,
//! permissions and id.

use crate::codec::{Reader, Result, WireError, Writer};
use crate::ea::{PosixAclXattrEntry, PosixAclXattrHeader};
use crate::layout::WireStruct;
use bytes::Bytes;

/// The only supported version.
pub const ACL_VERSION: u32 = 2;
/// The owner.
pub const ACL_USER_OBJ: u16 = 0x01;
/// A named user.
pub const ACL_USER: u16 = 0x02;
/// The owning group.
pub const ACL_GROUP_OBJ: u16 = 0x04;
/// A named group.
pub const ACL_GROUP: u16 = 0x08;
/// The maximum permissions of named users, of the owning group and of named groups.
pub const ACL_MASK: u16 = 0x10;
/// All other users.
pub const ACL_OTHER: u16 = 0x20;
/// The id of entries that name no user or group.
pub const ACL_UNDEFINED_ID: u32 = u32::MAX;

/// An access control list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PosixAcl {
    /// The entries, in the order of the attribute.
    pub entries: Vec<PosixAclXattrEntry>,
}

impl PosixAcl {
    /// Parses the attribute.
    ///
    /// # Errors
    ///
    /// A short header, an unknown version, or an incomplete entry.
    pub fn parse(bytes: &[u8]) -> Result<PosixAcl> {
        let mut r = Reader::new("posix_acl", bytes);
        let head = PosixAclXattrHeader::read(&mut r)?;
        if head.a_version != ACL_VERSION {
            return Err(WireError::Value {
                what: "posix_acl a_version",
                expected: "2",
                found: head.a_version.into(),
            });
        }
        let (entries, left) = r.rest().as_chunks::<{ PosixAclXattrEntry::SIZE }>();
        if !left.is_empty() {
            return Err(WireError::Short {
                what: "posix_acl entry",
                expected: PosixAclXattrEntry::SIZE,
                found: left.len(),
            });
        }
        Ok(PosixAcl {
            entries: entries
                .iter()
                .map(|e| PosixAclXattrEntry::from_bytes(e))
                .collect::<Result<_>>()?,
        })
    }

    /// The bytes of the attribute.
    pub fn build(&self) -> Bytes {
        let mut w = Writer::with_capacity(PosixAclXattrHeader::SIZE + 8 * self.entries.len());
        PosixAclXattrHeader {
            a_version: ACL_VERSION,
        }
        .write(&mut w);
        for entry in &self.entries {
            entry.write(&mut w);
        }
        w.finish()
    }

    /// The first entry with this tag.
    pub fn entry(&self, tag: u16) -> Option<&PosixAclXattrEntry> {
        self.entries.iter().find(|e| e.e_tag == tag)
    }
}

#[cfg(test)]
mod tests {
    use super::PosixAcl;
    use crate::PosixAclXattrEntry;
    use proptest::prelude::{any, prop, proptest};

    proptest! {
        #[test]
        fn a_list_survives_a_round_trip(entries in prop::collection::vec(any::<(u16, u16, u32)>(), 0..20)) {
            let entries = entries.into_iter().map(|(e_tag, e_perm, e_id)| PosixAclXattrEntry { e_tag, e_perm, e_id }).collect();
            let acl = PosixAcl { entries };
            assert_eq!(PosixAcl::parse(&acl.build()), Ok(acl));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = PosixAcl::parse(&bytes);
        }
    }
}
