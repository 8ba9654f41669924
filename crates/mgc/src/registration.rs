//! Nacre's additions to Lustre's registration, in extra buffers that Lustre ignores: requests have
//! a proof of the join token and the UUID of the target's store, refusals have a text with the
//! reason.

use bytes::Bytes;
use rpc::{Reply, ReplyMsg, ServerRequest};
use wire::{Errno, MgsTargetInfo, UUID_MAX, WireStruct, before_nul, nul_terminated};

/// The request buffer of the proof of the join token.
const PROOF: usize = 3;
/// The request buffer of the store's UUID.
const STORE: usize = 4;
/// The reply buffer of the reason of a refusal.
const REASON: usize = 2;
/// Maximum length of the reason, so that the reply fits into the sender's buffer.
const REASON_MAX: usize = 1024;

/// Builds the buffers of a request: the structure, the proof of the join token, the UUID of the
/// store. The second buffer is Lustre's list of longer NIDs.
pub(crate) fn request(info: Bytes, proof: Option<[u8; 32]>, store: Option<&str>) -> Vec<Bytes> {
    let mut bufs = vec![info];
    let mut put = |at: usize, buf: Bytes| {
        // The first buffer of a message is the ptlrpc_body.
        bufs.resize(at - 1, Bytes::new());
        bufs.push(buf);
    };
    if let Some(proof) = proof {
        put(PROOF, Bytes::copy_from_slice(&proof));
    }
    if let Some(store) = store {
        put(STORE, nul_terminated(store.as_bytes()));
    }
    bufs
}

/// The proof of the join token; empty without one.
pub fn proof(req: &ServerRequest) -> &[u8] {
    req.buf(PROOF)
}

/// The UUID of the target's store, if the target sent one.
///
/// # Errors
///
/// `EPROTO` if it is not a UUID.
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

/// The reply to a refused registration, with the reason as text; for Nacre targets only.
pub fn refusal(errno: Errno, why: &str) -> Reply {
    let why = why.as_bytes();
    let text = Bytes::copy_from_slice(&why[..why.len().min(REASON_MAX)]);
    Reply::new(vec![MgsTargetInfo::default().to_bytes(), text]).with_status(errno.status())
}

/// The reason of a refusal, if the reply has one.
pub(crate) fn refusal_reason(reply: &ReplyMsg) -> Option<String> {
    let text = String::from_utf8_lossy(before_nul(reply.buf(REASON))).into_owned();
    (!text.is_empty()).then_some(text)
}
