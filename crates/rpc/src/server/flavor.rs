//! Security flavors (`lm_secflvr`): only null is spoken here (guide 3.1).
//!
//! A request of another flavor is refused by a message of the null flavor. Lustre's client takes no reply of another
//! flavor than its own: it says so in its log and fails at once, where silence would keep it trying.

use bytes::Bytes;
use wire::{
    MSGHDR_AT_SUPPORT, Message, PTL_RPC_MSG_REQUEST, PtlrpcBody, SPTLRPC_FLVR_GSSNULL, SPTLRPC_FLVR_KRB5A,
    SPTLRPC_FLVR_KRB5I, SPTLRPC_FLVR_KRB5N, SPTLRPC_FLVR_KRB5P, SPTLRPC_FLVR_PLAIN, SPTLRPC_FLVR_SKA,
    SPTLRPC_FLVR_SKI, SPTLRPC_FLVR_SKN, SPTLRPC_FLVR_SKPI,
};

/// The flavor's bits; those above say which part of Lustre the sender is.
const FLAVOR: u32 = 0x00ff_ffff;
/// Those of policy, mechanism and service, which make the name; the others are about bulk.
const BASE: u32 = 0xfff;
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
/// Where plain, and GSS that does not encrypt, have the request that they wrap.
const WRAPPED: usize = 1;
/// How long an answer to what does not say it is waited for, in seconds.
const PATIENCE_SECS: u32 = 5;

/// The name of a message's flavor, unless it is the null flavor.
pub(crate) fn foreign(msg: &Message) -> Option<String> {
    let flavor = msg.secflvr & FLAVOR;
    if flavor == 0 {
        return None;
    }
    let of = |(named, _): &&(u32, _)| named & BASE == flavor & BASE;
    let name = NAMES.iter().find(of).map_or("unknown", |(_, name)| name);
    Some(format!("{name} ({flavor:#x})"))
}

/// The request within one of another flavor, as far as it can be read: enough to refuse it.
pub(crate) fn within(msg: &Message) -> Message {
    let secflvr = msg.secflvr;
    match Message::parse(&msg.bytes(WRAPPED)) {
        Ok(inner)
            if inner
                .body()
                .is_ok_and(|b| b.pb_type == PTL_RPC_MSG_REQUEST && b.pb_timeout > 0) =>
        {
            Message { secflvr, ..inner }
        }
        // All that speak these flavors take early replies.
        _ => {
            let body = PtlrpcBody {
                pb_type: PTL_RPC_MSG_REQUEST,
                pb_timeout: PATIENCE_SECS,
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
    use super::foreign;
    use wire::Message;

    #[test]
    fn a_flavor_is_known_whoever_uses_it_and_however_bulk_is_protected() {
        let name = |secflvr| {
            foreign(&Message {
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
