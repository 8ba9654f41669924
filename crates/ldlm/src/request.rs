//! `DLM_REQ`, the buffer of lock requests, cancels and callbacks: a lock description and a list of
//! handles.

use crate::mode::LockMode;
use crate::policy::Policy;
use bytes::{BufMut, Bytes, BytesMut};
use wire::{Errno, LdlmLockDesc, LdlmRequest, LdlmResId, LdlmResourceDesc, WireStruct};

/// Offset of `lock_handle[]`, bytes.
const HANDLES_AT: usize = 88;
/// Minimum number of handles that the buffer has space for.
const HANDLES_MIN: usize = 2;
/// Maximum number of handles that a client lists and the server reads.
pub const HANDLES_MAX: usize = 512;

/// Builds a `DLM_REQ`. `count` is `lock_count`, which may differ from the number of handles.
pub(crate) fn dlm_req(
    flags: u64,
    count: u32,
    desc: LdlmLockDesc,
    handles: impl ExactSizeIterator<Item = u64>,
) -> Bytes {
    let len = HANDLES_AT + 8 * handles.len().max(HANDLES_MIN);
    let mut buf = BytesMut::with_capacity(len);
    let head = LdlmRequest {
        lock_flags: flags as u32,
        lock_count: count,
        lock_desc: desc,
        lock_handle: [0; 2],
    };
    buf.put_slice(&head.to_bytes()[..HANDLES_AT]);
    handles.for_each(|h| buf.put_u64_le(h));
    buf.resize(len, 0);
    buf.freeze()
}

/// The description of a lock that is requested.
pub(crate) fn requested_desc(res: LdlmResId, mode: LockMode, policy: Policy) -> LdlmLockDesc {
    LdlmLockDesc {
        l_resource: LdlmResourceDesc {
            lr_type: policy.ty().wire(),
            lr_pad: 0,
            lr_name: res,
        },
        l_req_mode: mode.wire(),
        l_granted_mode: 0,
        l_policy_data: policy.to_wire(),
    }
}

/// The buffer that lists locks to cancel, in an `LDLM_CANCEL` or in another request (an
/// `MDS_REINT`, an `OST_DESTROY`). The server cancels them before it executes the request. Handles
/// beyond [`HANDLES_MAX`] are left out.
pub fn cancel_req(handles: &[u64]) -> Bytes {
    let handles = &handles[..handles.len().min(HANDLES_MAX)];
    dlm_req(
        0,
        handles.len() as u32,
        LdlmLockDesc::default(),
        handles.iter().copied(),
    )
}

/// Parses the fixed part of the buffer.
pub(crate) fn parse(buf: &[u8]) -> Result<LdlmRequest, Errno> {
    LdlmRequest::from_bytes(buf).map_err(|_| Errno::EPROTO)
}

/// The handles to cancel in a `DLM_REQ`: the first `lock_count` handles (at most [`HANDLES_MAX`])
/// without the first `skip` of them. Handles for which the buffer is too short are left out.
pub fn handles_to_cancel(buf: &[u8], skip: usize) -> Vec<u64> {
    let Ok(head) = LdlmRequest::from_bytes(buf) else {
        return Vec::new();
    };
    let present = buf.get(HANDLES_AT..).unwrap_or_default().chunks_exact(8);
    let count = (head.lock_count as usize).min(HANDLES_MAX);
    let listed = present.take(count).skip(skip);
    listed
        .filter_map(|h| h.try_into().ok())
        .map(u64::from_le_bytes)
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{cancel_req, dlm_req, handles_to_cancel, parse};
    use wire::LdlmLockDesc;

    #[test]
    fn the_buffer_has_space_for_at_least_two_handles() {
        assert_eq!(cancel_req(&[]).len(), 104);
        assert_eq!(cancel_req(&[7]).len(), 104);
        assert_eq!(cancel_req(&[7, 8, 9]).len(), 112);
    }

    #[test]
    fn handles_are_read_as_far_as_present() {
        assert_eq!(handles_to_cancel(&cancel_req(&[7, 8, 9]), 0), [7, 8, 9]);
        assert_eq!(handles_to_cancel(&[], 0), []);
        let too_high_count = dlm_req(0, 1000, LdlmLockDesc::default(), [1, 2].into_iter());
        assert_eq!(handles_to_cancel(&too_high_count, 1), [2]);
        assert_eq!(parse(&too_high_count).unwrap().lock_count, 1000);
        assert!(parse(&too_high_count[..80]).is_err());
    }
}
