//! Security flavors (`lm_secflvr`). Only the null flavor is supported.
//!
//! The server refuses a request of another flavor by a null-flavor reply. Lustre's client rejects a
//! reply of a flavor other than its own: it logs an error and fails at once. Without a reply it
//! would retry.

use bytes::Bytes;
use wire::{
    MSGHDR_AT_SUPPORT, Message, PTL_RPC_MSG_REQUEST, PtlrpcBody, SPTLRPC_FLVR_GSSNULL, SPTLRPC_FLVR_KRB5A,
    SPTLRPC_FLVR_KRB5I, SPTLRPC_FLVR_KRB5N, SPTLRPC_FLVR_KRB5P, SPTLRPC_FLVR_PLAIN, SPTLRPC_FLVR_SKA,
    SPTLRPC_FLVR_SKI, SPTLRPC_FLVR_SKN, SPTLRPC_FLVR_SKPI,
};

/// The flavor's bits; the higher bits are the sender's `enum lustre_sec_part`.
const FLAVOR_MASK: u32 = 0x00ff_ffff;
/// The bits of policy, mechanism and service, which determine the flavor's name; the other bits
/// concern bulk.
const BASE_MASK: u32 = 0xfff;
/// The flavors that Lustre has besides the null flavor, and their names.
const NAMES: [(u32, &str); 10] = [
    (SPTLRPC_FLVR_PLAIN, "plain"),
    (SPTLRPC_FLVR_GSSNULL, "gssnull"),
    (SPTLRPC_FLVR_KRB5N, "krb5n"),
    (SPTLRPC_FLVR_KRB5A, "krb5a"),
    (SPTLRPC_FLVR_KRB5I, "krb5i"),
    (SPTLRPC_FLVR_KRB5P, "krb5p"),
    (SPTLRPC_FLVR_SKN, "skn"),
    (SPTLRPC_FLVR_SKA, "ska"),
    (SPTLRPC_FLVR_SKI, "ski"),
    (SPTLRPC_FLVR_SKPI, "skpi"),
];
/// Index of the buffer with the wrapped request in a message of the plain flavor, or of a GSS
/// flavor without encryption.
const WRAPPED_BUFFER: usize = 1;
/// `pb_timeout` assumed for requests that cannot be read, in seconds.
const DEFAULT_TIMEOUT_SECS: u32 = 5;

/// The name and the bits of a message's flavor; `None` for the null flavor.
pub(crate) fn unsupported_flavor(msg: &Message) -> Option<String> {
    let flavor = msg.secflvr & FLAVOR_MASK;
    if flavor == 0 {
        return None;
    }
    let has_same_base = |(named, _): &&(u32, _)| named & BASE_MASK == flavor & BASE_MASK;
    let name = NAMES
        .iter()
        .find(has_same_base)
        .map_or("unknown", |(_, name)| name);
    Some(format!("{name} ({flavor:#x})"))
}

/// Extracts the wrapped request, or creates an empty one if the wrapped one cannot be read. Either
/// is enough for a refusal.
pub(crate) fn unwrap_request(msg: &Message) -> Message {
    let secflvr = msg.secflvr;
    match Message::parse(&msg.bytes(WRAPPED_BUFFER)) {
        Ok(inner)
            if inner
                .body()
                .is_ok_and(|b| b.pb_type == PTL_RPC_MSG_REQUEST && b.pb_timeout > 0) =>
        {
            Message { secflvr, ..inner }
        }
        // All peers with these flavors take early replies.
        _ => {
            let body = PtlrpcBody {
                pb_type: PTL_RPC_MSG_REQUEST,
                pb_timeout: DEFAULT_TIMEOUT_SECS,
                ..PtlrpcBody::default()
            };
            Message {
                secflvr,
                flags: MSGHDR_AT_SUPPORT,
                ..Message::new(&body, [] as [Bytes; 0])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::unsupported_flavor;
    use wire::Message;

    #[test]
    fn the_flavor_ignores_the_senders_part_and_the_bulk_bits() {
        let name = |secflvr| {
            unsupported_flavor(&Message {
                secflvr,
                ..Message::default()
            })
        };
        assert_eq!(name(0), None);
        assert_eq!(name(3 << 24), None, "the null flavor of an MGC");
        assert_eq!(name(1 << 24 | 0x2_0222).as_deref(), Some("ski (0x20222)"));
        assert_eq!(name(0x2_1001).as_deref(), Some("plain (0x21001)"));
        assert_eq!(name(0x322).as_deref(), Some("skpi (0x322)"));
        assert_eq!(name(0xff_ffff).as_deref(), Some("unknown (0xffffff)"));
    }
}
