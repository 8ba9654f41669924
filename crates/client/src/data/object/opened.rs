//! Data on an MDT that comes with the reply to an intent: the size and times under the lock of a
//! lookup or open, and with an open the bytes of a small file.
//!
//! The lock covers the data without interruption since the MDT has read it, so no other client has
//! changed the data meanwhile. The object counts this client's own changes: after one of them, the
//! bytes are dropped.

use super::Object;
use bytes::Bytes;
use ldlm::LockRef;
use wire::{
    Errno, Fid, HasTimes, MDS_INODELOCK_DOM, MdtBody, NiobufRemote, OBD_MD_DOM_SIZE, OBD_OBJECT_EOF, OstLvb,
    WireStruct,
};

/// Data in the reply to a lookup or open.
pub(crate) struct OpenedData<'a> {
    lock: &'a LockRef,
    lvb: OstLvb,
    /// The bytes of the file from an offset on; empty: the reply has none.
    bytes: (u64, Bytes),
}

impl OpenedData<'_> {
    /// The data of a reply with this lock, body and buffer. `None` if the lock does not cover the
    /// data, or the reply has no size.
    pub(crate) fn parse<'a>(lock: &'a LockRef, body: &MdtBody, buf: &[u8]) -> Option<OpenedData<'a>> {
        let covers = Fid::from_res_id(&lock.info().res) == body.mbo_fid1
            && lock.policy().bits() & MDS_INODELOCK_DOM != 0
            && lock.mode().covers(ldlm::LockMode::Pr);
        if !covers || body.mbo_valid & OBD_MD_DOM_SIZE == 0 {
            return None;
        }
        let mut lvb = OstLvb {
            lvb_size: body.mbo_dom_size,
            lvb_blocks: body.mbo_dom_blocks,
            ..OstLvb::default()
        };
        lvb.set_times(body.times());
        let bytes = parse_bytes(buf, lvb.lvb_size).unwrap_or_else(|_| {
            lnet::warn_rate_limited!(file = %body.mbo_fid1, "ignored malformed data in the reply to an open");
            Default::default()
        });
        Some(OpenedData { lock, lvb, bytes })
    }
}

/// The bytes in a reply and their offset, of a file with this size.
fn parse_bytes(buf: &[u8], size: u64) -> Result<(u64, Bytes), Errno> {
    if buf.is_empty() {
        return Ok(Default::default());
    }
    let niobuf = NiobufRemote::from_bytes(buf)?;
    let rest = buf.get(NiobufRemote::SIZE..).unwrap_or_default();
    let bytes = rest.get(..niobuf.rnb_len as usize).ok_or(Errno::EPROTO)?;
    let end = niobuf.rnb_offset.checked_add(u64::from(niobuf.rnb_len));
    if end.is_none_or(|end| end > size) {
        return Err(Errno::EPROTO);
    }
    // A copy, so that the cache does not keep the whole reply.
    Ok((niobuf.rnb_offset, Bytes::copy_from_slice(bytes)))
}

impl Object {
    /// The number of this client's changes, for [`Object::take_opened`].
    pub(in crate::data) fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// Whether the object has a lock, and bytes in the cache.
    pub(in crate::data) fn has_cached_bytes(&self) -> bool {
        self.is_locked() && self.state.lock().cache.bytes() > 0
    }

    /// Takes the size and times of a reply.
    pub(in crate::data) fn take_locked(&self, locked: &OpenedData<'_>) {
        let (cookie, precision) = (locked.lock.info().cookie, self.osc.precision());
        let mut state = self.state.lock();
        if locked.lock.is_valid() && !state.knows(cookie) {
            state.add_lock(cookie, 0..OBD_OBJECT_EOF, &locked.lvb, precision);
        }
    }

    /// Takes the data of a reply. `changes`: the number of changes when the request was sent.
    pub(in crate::data) fn take_opened(&self, opened: &OpenedData<'_>, changes: u64) {
        self.take_locked(opened);
        let (offset, bytes) = &opened.bytes;
        let mut state = self.state.lock();
        if !opened.lock.is_valid() || state.changes != changes || bytes.is_empty() {
            return;
        }
        state.cache.fill(*offset, bytes.clone());
        drop(state);
        self.account();
    }
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;
    use bytes::Bytes;
    use wire::{Errno, NiobufRemote, WireStruct};

    fn buf(rnb_offset: u64, rnb_len: u32, data: &[u8]) -> Vec<u8> {
        let niobuf = NiobufRemote {
            rnb_offset,
            rnb_len,
            rnb_flags: 0,
        };
        [&niobuf.to_bytes()[..], data].concat()
    }

    #[test]
    fn bytes_beyond_the_buffer_or_the_size_are_refused() {
        assert_eq!(parse_bytes(b"", 9), Ok((0, Bytes::new())));
        assert_eq!(parse_bytes(&buf(0, 0, b""), 9), Ok((0, Bytes::new())));
        assert_eq!(
            parse_bytes(&buf(4, 5, b"12345"), 9),
            Ok((4, Bytes::from_static(b"12345")))
        );
        let malformed = [
            (buf(0, 5, b"1234"), 9),
            (buf(5, 5, b"12345"), 9),
            (buf(u64::MAX, 5, b"12345"), u64::MAX),
            (buf(0, u32::MAX, b"12345"), u64::MAX),
            (vec![0; 15], 9),
        ];
        for (buf, size) in malformed {
            assert_eq!(parse_bytes(&buf, size).map(drop), Err(Errno::EPROTO), "{buf:?}");
        }
    }
}
