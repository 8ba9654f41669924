//! What a registration of Nacre has beside Lustre's structure: the request has a proof of the join token and the UUID of the
//! target's store, a refusal has a text that says why. Each is a buffer that Lustre ignores.

use bytes::Bytes;
use rpc::{Reply, ReplyMsg, ServerRequest};
use wire::{Errno, MgsTargetInfo, UUID_MAX, WireStruct, before_nul, nul_terminated};

/// The buffer of a request that has the proof of the join token.
const PROOF: usize = 3;
/// The buffer of a request that has the store's UUID.
const STORE: usize = 4;
/// The buffer of a refusal's text.
const WHY: usize = 2;
/// Bytes of that text at most, so that the reply fits the sender's buffer.
const WHY_MAX: usize = 1024;

/// The buffers of a request: the structure, the proof of the join token, the UUID of the store. The second buffer is
/// Lustre's list of longer NIDs.
pub(crate) fn request(info: Bytes, proof: Option<[u8; 32]>, store: Option<&str>) -> Vec<Bytes> {
    let mut bufs = vec![info];
    let mut put = |at: usize, what: Bytes| {
        // The first buffer of a message is its header.
        bufs.resize(at - 1, Bytes::new());
        bufs.push(what);
    };
    if let Some(proof) = proof {
        put(PROOF, Bytes::copy_from_slice(&proof));
    }
    if let Some(store) = store {
        put(STORE, nul_terminated(store.as_bytes()));
    }
    bufs
}

/// The proof of the join token; empty if the target sent none.
pub fn proof(req: &ServerRequest) -> &[u8] {
    req.buf(PROOF)
}

/// The UUID of a target's store, if the target sent one. `EPROTO` when it is no UUID.
pub fn store(req: &ServerRequest) -> Result<Option<String>, Errno> {
    let uuid = before_nul(req.buf(STORE));
    if uuid.is_empty() {
        return Ok(None);
    }
    let is_uuid = uuid.len() < UUID_MAX as usize && uuid.iter().all(|b| b.is_ascii_hexdigit() || *b == b'-');
    match std::str::from_utf8(uuid) {
        Ok(uuid) if is_uuid => Ok(Some(uuid.to_owned())),
        _ => Err(Errno::EPROTO),
    }
}

/// The answer to a registration that is refused, with the reason as text. Only for a target of Nacre.
pub fn refusal(errno: Errno, why: &str) -> Reply {
    let why = why.as_bytes();
    let text = Bytes::copy_from_slice(&why[..why.len().min(WHY_MAX)]);
    Reply::new(vec![MgsTargetInfo::default().to_bytes(), text]).with_status(errno.status())
}

/// The text of a refusal, if the reply has one.
pub(crate) fn why(reply: &ReplyMsg) -> Option<String> {
    let text = String::from_utf8_lossy(before_nul(reply.buf(WHY))).into_owned();
    (!text.is_empty()).then_some(text)
}
