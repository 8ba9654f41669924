//! Methods of identifiers: FIDs, object ids, lock resources, and packed fields of stripes and
//! mirrors.

use crate::codec::{Reader, Result, WireError, Writer, round_up8};
use crate::consts::fid::{
    FID_OID_DOT_LUSTRE, FID_OID_DOT_LUSTRE_OBF, FID_SEQ_DOT_LUSTRE, FID_SEQ_NORMAL, FID_SEQ_ROOT,
};
use crate::consts::ldlm::LDLM_FLOCK;
use crate::fid::{LuFid, OstId};
use crate::layout::{WireField, WireStruct};
use crate::ldlm::{LdlmLockDesc, LdlmReply, LdlmRequest, LdlmResId};
use crate::lov::LovCompMdEntryV1;
use crate::ost::Obdo;
use crate::ptlrpc::{LustreHandle, ObdUuid};
use crate::text::Text;
use bytes::Bytes;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

/// A file identifier: sequence, object id in the sequence, version.
pub type Fid = LuFid;

impl LuFid {
    /// The root directory.
    pub const ROOT: Fid = Fid::new(FID_SEQ_ROOT, 1, 0);
    /// No file.
    pub const ZERO: Fid = Fid::new(0, 0, 0);
    /// The directory `.lustre` in the root.
    pub const DOT_LUSTRE: Fid = Fid::new(FID_SEQ_DOT_LUSTRE, FID_OID_DOT_LUSTRE, 0);
    /// The directory `.lustre/fid`, where each file can be opened by its FID.
    pub const DOT_LUSTRE_FID: Fid = Fid::new(FID_SEQ_DOT_LUSTRE, FID_OID_DOT_LUSTRE_OBF, 0);

    /// Builds a FID from its parts.
    pub const fn new(seq: u64, oid: u32, ver: u32) -> Fid {
        LuFid {
            f_seq: seq,
            f_oid: oid,
            f_ver: ver,
        }
    }

    /// The FID as an inode number below 2^63. Different FIDs rarely have the same number.
    pub const fn flatten(&self) -> u64 {
        let ino = (self.f_seq << 24)
            .wrapping_add((self.f_seq >> 24) & 0xff_ffff_0000)
            .wrapping_add(self.f_oid as u64);
        ino & (u64::MAX >> 1)
    }

    /// The inverse of [`Fid::flatten`] for a FID of version 0 with an object id below 2^24 and a
    /// sequence below 2^39. The FIDs of Nacre's files have this form until its servers allocate
    /// sequence 2^39.
    pub const fn unflatten(ino: u64) -> Fid {
        Fid::new(ino >> 24 & 0x7f_ffff_ffff, (ino & 0xff_ffff) as u32, 0)
    }

    /// Whether this is the root directory.
    pub fn is_root(&self) -> bool {
        *self == Self::ROOT
    }

    /// Whether this is `.lustre` or a directory in it.
    pub fn is_dot_lustre(&self) -> bool {
        self.f_seq == FID_SEQ_DOT_LUSTRE
    }

    /// Whether this is [`Self::ZERO`].
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// Whether the FID is in a sequence that the sequence server allocates to clients and servers.
    pub fn is_normal(&self) -> bool {
        self.f_seq >= FID_SEQ_NORMAL
    }

    /// The version in the upper 32 bits and the object id in the lower ones, as in lock resources.
    pub fn ver_oid(&self) -> u64 {
        u64::from(self.f_ver) << 32 | u64::from(self.f_oid)
    }

    /// The lock resource of the file or OST object with this FID.
    pub fn res_id(&self) -> LdlmResId {
        LdlmResId {
            name: [self.f_seq, self.ver_oid(), 0, 0],
        }
    }

    /// The lock resource of this file's flocks.
    pub fn flock_res_id(&self) -> LdlmResId {
        LdlmResId {
            name: [self.f_seq, self.ver_oid(), 0, u64::from(LDLM_FLOCK)],
        }
    }

    /// The FID in a lock resource: on an MDT the file's, on an OST the object's. On an OST, valid
    /// only if the object is in a FID sequence.
    pub fn from_res_id(res: &LdlmResId) -> Fid {
        Fid::new(res.name[0], res.name[1] as u32, (res.name[1] >> 32) as u32)
    }
}

impl fmt::Display for LuFid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}:{:#x}:{:#x}]", self.f_seq, self.f_oid, self.f_ver)
    }
}

impl FromStr for LuFid {
    type Err = WireError;

    /// Parses `[0x200000400:0x1:0x0]`, with or without brackets. Numbers without `0x` are decimal.
    fn from_str(s: &str) -> Result<Fid> {
        let parse = || {
            let inner = s.strip_prefix('[').map_or(Some(s), |t| t.strip_suffix(']'))?;
            let mut parts = inner.split(':').map(|p| match p.strip_prefix("0x") {
                Some(hex) if !hex.starts_with('+') => u64::from_str_radix(hex, 16).ok(),
                Some(_) => None,
                None => p
                    .bytes()
                    .all(|b| b.is_ascii_digit())
                    .then(|| p.parse().ok())
                    .flatten(),
            });
            let (seq, oid, ver) = (parts.next()??, parts.next()??, parts.next()??);
            if parts.next().is_some() {
                return None;
            }
            Some(Fid::new(seq, u32::try_from(oid).ok()?, u32::try_from(ver).ok()?))
        };
        parse().ok_or_else(|| WireError::Text {
            what: "FID",
            expected: "of the form [0x200000400:0x1:0x0]",
            text: s.chars().take(80).collect(),
        })
    }
}

impl From<Fid> for OstId {
    fn from(fid: Fid) -> OstId {
        OstId {
            oi_id: fid.f_seq,
            oi_seq: fid.ver_oid(),
        }
    }
}

impl OstId {
    /// The FID in the same 16 bytes; valid only if the object is in a FID sequence.
    pub fn fid(&self) -> Fid {
        Fid::new(self.oi_id, self.oi_seq as u32, (self.oi_seq >> 32) as u32)
    }

    /// The lock resource of this object.
    pub fn res_id(&self) -> LdlmResId {
        LdlmResId {
            name: [self.oi_id, self.oi_seq, 0, 0],
        }
    }
}

impl fmt::Display for OstId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oi_id >= FID_SEQ_NORMAL {
            fmt::Display::fmt(&self.fid(), f)
        } else {
            write!(f, "{:#x}:{}", self.oi_seq, self.oi_id)
        }
    }
}

impl Hash for LdlmResId {
    /// Hashes word by word, because lock tables hash resources often. A derived implementation
    /// passes the array as bytes, which is slower.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.iter().for_each(|word| state.write_u64(*word));
    }
}

impl fmt::Display for LdlmResId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.name;
        write!(f, "[{a:#x}:{b:#x}:{c:#x}].{d:x}")
    }
}

impl From<u64> for LustreHandle {
    fn from(cookie: u64) -> Self {
        LustreHandle { cookie }
    }
}

impl fmt::Display for LustreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.cookie)
    }
}

impl ObdUuid {
    /// The UUID with this text; `None` if it is longer than 39 bytes.
    pub fn new(s: &str) -> Option<ObdUuid> {
        Text::new(s).map(|uuid| ObdUuid { uuid })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.uuid.as_str()
    }
}

impl fmt::Display for ObdUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.uuid, f)
    }
}

impl LdlmLockDesc {
    /// Whether the lock has been granted.
    pub fn is_granted(&self) -> bool {
        self.l_granted_mode != 0
    }
}

impl LdlmReply {
    /// The result of an intent: 0 or a negative errno (`lock_policy_res2`).
    pub fn intent_status(&self) -> i32 {
        self.lock_policy_res2 as i64 as i32
    }

    /// Sets the result of an intent: 0 or a negative errno.
    pub fn set_intent_status(&mut self, status: i32) {
        self.lock_policy_res2 = i64::from(status) as u64;
    }
}

impl LdlmRequest {
    /// Size without the handles, in bytes.
    pub const FIXED: usize = Self::SIZE - 16;

    /// The handles in the buffer. In an enqueue, the first is the new lock's handle; the others
    /// name locks to cancel.
    ///
    /// Their number is `lock_count`, but at least one: callbacks and enqueues may leave
    /// `lock_count` 0.
    ///
    /// # Errors
    ///
    /// The buffer is too short for these handles.
    pub fn handles(buf: &[u8]) -> Result<Vec<u64>> {
        let fixed = buf.get(..Self::FIXED).ok_or(WireError::Short {
            what: Self::NAME,
            expected: Self::FIXED,
            found: buf.len(),
        })?;
        let mut r = Reader::new(Self::NAME, fixed);
        r.take(4)?;
        let count = r.u32()?.max(1) as usize;
        let (words, _) = buf[Self::FIXED..].as_chunks::<8>();
        if count > words.len() {
            return Err(WireError::TooLong {
                what: "ldlm_request.lock_count",
                limit: words.len(),
                found: count,
            });
        }
        Ok(words[..count].iter().map(|w| u64::from_le_bytes(*w)).collect())
    }

    /// The request with these handles, padded to space for at least two handles: peers refuse
    /// smaller buffers.
    pub fn to_bytes_with(&self, handles: &[u64]) -> Bytes {
        let mut w = Writer::with_capacity(Self::FIXED + 8 * handles.len().max(2));
        self.lock_flags.write_field(&mut w);
        self.lock_count.write_field(&mut w);
        self.lock_desc.write_field(&mut w);
        for h in handles {
            w.u64(*h);
        }
        w.pad_to(Self::SIZE);
        w.finish()
    }
}

impl LovCompMdEntryV1 {
    /// `lcme_timestamp`, in seconds since 1970: the lower 48 bits of `lcme_time_and_id`.
    pub fn lcme_timestamp(&self) -> u64 {
        self.lcme_time_and_id & 0xffff_ffff_ffff
    }

    /// The id of the linked mirror: the upper 16 bits of `lcme_time_and_id`.
    pub fn lcme_mirror_link_id(&self) -> u16 {
        (self.lcme_time_and_id >> 48) as u16
    }
}

/// Implements `Debug` by `Display`, because identifiers inside other structures are easier to read
/// as one word.
macro_rules! debug_as_displayed {
    ($( $ty:ident ),*) => {$(
        impl fmt::Debug for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}
debug_as_displayed!(LuFid, OstId, LdlmResId, LustreHandle, ObdUuid);

/// Declares accessors for fields that have another name and meaning in some messages.
macro_rules! aliases {
    ($ty:ident { $( $alias:ident, $set:ident => $field:ident : $t:ty ),* $(,)? }) => {
        impl $ty {
            $(
                #[doc = concat!("`", stringify!($alias), "`, in the place of `", stringify!($field), "`.")]
                pub fn $alias(&self) -> $t {
                    self.$field
                }
                #[doc = concat!("Sets `", stringify!($alias), "`, in the place of `", stringify!($field), "`.")]
                pub fn $set(&mut self, v: $t) {
                    self.$field = v;
                }
            )*
        }
    };
}
aliases!(Obdo {
    o_dirty, set_o_dirty => o_blocks: u64,
    o_undirty, set_o_undirty => o_mode: u32,
    o_dropped, set_o_dropped => o_misc: u32,
    o_cksum, set_o_cksum => o_nlink: u32,
    o_grant_used, set_o_grant_used => o_data_version: u64,
    o_falloc_mode, set_o_falloc_mode => o_nlink: u32,
});

impl Obdo {
    /// The FID of the file that the object is a stripe of.
    pub fn parent_fid(&self) -> Fid {
        Fid::new(self.o_parent_seq, self.o_parent_oid, self.o_parent_ver)
    }

    /// Sets the FID of the file that the object is a stripe of.
    pub fn set_parent_fid(&mut self, fid: Fid) {
        (self.o_parent_seq, self.o_parent_oid, self.o_parent_ver) = (fid.f_seq, fid.f_oid, fid.f_ver);
    }
}

/// The buffer of a string: its bytes and a NUL.
pub fn nul_terminated(s: &[u8]) -> Bytes {
    let mut w = Writer::with_capacity(round_up8(s.len() + 1));
    w.put(s);
    w.u8(0);
    w.finish()
}

/// The bytes of a string's buffer before the first NUL, or all bytes if it has none.
pub fn before_nul(buf: &[u8]) -> &[u8] {
    let end = buf.iter().position(|&b| b == 0).unwrap_or(buf.len());
    &buf[..end]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Fid;
    use crate::{LdlmRequest, OstId, WireStruct};

    #[test]
    fn fids_have_the_text_form_of_lustre() {
        let fid: Fid = "[0x200000400:0x1:0x0]".parse().unwrap();
        assert_eq!(fid, Fid::new(0x2_0000_0400, 1, 0));
        assert_eq!(fid.to_string(), "[0x200000400:0x1:0x0]");
        assert_eq!("0x200000007:0x1:0x0".parse::<Fid>().unwrap(), Fid::ROOT);
        for bad in [
            "",
            "[]",
            "[1:2]",
            "[1:2:3:4]",
            "[0x1:0x100000000:0x0]",
            "[0x1:0x2:0x3",
            "[-1:2:3]",
            "[0x+1:2:3]",
        ] {
            assert!(bad.parse::<Fid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fid_converts_to_its_resource_and_back() {
        let fid = Fid::new(0x2_0000_0400, 7, 3);
        assert_eq!(fid.res_id().name, [0x2_0000_0400, 0x3_0000_0007, 0, 0]);
        assert_eq!(Fid::from_res_id(&fid.res_id()), fid);
        assert_eq!(OstId::from(fid).fid(), fid);
        assert_eq!(OstId::from(fid).to_bytes(), fid.to_bytes());
    }

    #[test]
    fn handles_beyond_the_buffer_are_refused() {
        let req = LdlmRequest {
            lock_count: 3,
            ..Default::default()
        };
        let buf = req.to_bytes_with(&[1, 2, 3]);
        assert_eq!(buf.len(), 88 + 24);
        assert_eq!(LdlmRequest::handles(&buf).unwrap(), [1, 2, 3]);
        assert!(LdlmRequest::handles(&buf[..buf.len() - 8]).is_err());
        assert!(LdlmRequest::handles(&buf[..80]).is_err());
        assert_eq!(LdlmRequest::default().to_bytes_with(&[9]).len(), 104);
    }
}
