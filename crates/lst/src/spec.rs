//! Parses a test request into a [`TestSpec`] that a client can run, or an errno for the console.
//! Does no I/O.

use crate::pattern::{Check, PAGE};
use crate::settings::{CONCURRENCY_MAX, DESTINATIONS_MAX};
use wire::{
    Errno, LNET_MTU, LST_BRW_READ, LST_BRW_WRITE, LST_FEAT_BULK_LEN, LnetProcessIdPacked, Nid,
    SFW_ID_PER_PAGE, SRPC_SERVICE_BRW, SRPC_SERVICE_PING, SrpcTestReqst, TestBulkReq, TestBulkReqV1,
    WireStruct,
};

/// A test as each of its clients runs it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TestSpec {
    pub(crate) operation: Operation,
    pub(crate) destinations: Vec<Nid>,
    /// Requests in flight to each destination.
    pub(crate) concurrency: usize,
    /// Number of requests that each unit sends; `None`: until the test is stopped.
    pub(crate) loops: Option<u32>,
    pub(crate) stop_on_error: bool,
    /// The features of the session.
    pub(crate) feats: u32,
}

/// The operation of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Ping,
    Brw(Brw),
}

/// A bulk read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Brw {
    /// The client sends the data; otherwise the server does.
    pub(crate) write: bool,
    /// Length in bytes.
    pub(crate) len: u32,
    /// Offset of the client's buffer in its first page, in bytes.
    pub(crate) offset: usize,
    pub(crate) check: Check,
    /// The wire form of `check`.
    pub(crate) flags: u32,
}

/// Checks the parameters that clients and servers need.
///
/// # Errors
///
/// `EINVAL`: a parameter is invalid.
pub(crate) fn check(request: &SrpcTestReqst) -> Result<(), Errno> {
    let known_service = [SRPC_SERVICE_BRW, SRPC_SERVICE_PING].contains(&request.tsr_service);
    let invalid = request.tsr_loop == 0
        || request.tsr_concur == 0
        || request.tsr_concur > CONCURRENCY_MAX
        || request.tsr_sid.ses_nid == Nid::ANY
        || request.tsr_ndest > DESTINATIONS_MAX
        || (request.tsr_is_client != 0 && request.tsr_ndest == 0)
        || !known_service;
    if invalid { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The announced size of a test's list of destinations, in bytes.
pub(crate) fn list_len(request: &SrpcTestReqst) -> u32 {
    request.tsr_ndest.saturating_mul(LnetProcessIdPacked::SIZE as u32)
}

/// Builds the specification from a checked request and the fetched list of destinations.
pub(crate) fn parse(request: &SrpcTestReqst, list: &[u8], feats: u32) -> Result<TestSpec, Errno> {
    Ok(TestSpec {
        operation: parse_operation(request, feats)?,
        destinations: destinations(list, request.tsr_ndest as usize)?,
        concurrency: request.tsr_concur as usize,
        // Negative: until the test is stopped.
        loops: (request.tsr_loop as i32 > 0).then_some(request.tsr_loop),
        stop_on_error: request.tsr_stop_onerr != 0,
        feats,
    })
}

fn parse_operation(request: &SrpcTestReqst, feats: u32) -> Result<Operation, Errno> {
    if request.tsr_service == SRPC_SERVICE_PING {
        return Ok(Operation::Ping);
    }
    let invalid = |_| Errno::EINVAL;
    let (opc, flags, len, offset) = if feats & LST_FEAT_BULK_LEN == 0 {
        let v0 = TestBulkReq::from_bytes(&request.tsr_u).map_err(invalid)?;
        let len = v0.blk_npg.checked_mul(PAGE as u32).ok_or(Errno::EINVAL)?;
        (v0.blk_opc, v0.blk_flags, len, 0)
    } else {
        let v1 = TestBulkReqV1::from_bytes(&request.tsr_u).map_err(invalid)?;
        let offset = v1.blk_offset as usize % PAGE;
        (v1.blk_opc.into(), v1.blk_flags.into(), v1.blk_len, offset)
    };
    let known_opc = [LST_BRW_READ, LST_BRW_WRITE].contains(&opc);
    if !known_opc || len == 0 || len > LNET_MTU || !offset.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    Ok(Operation::Brw(Brw {
        write: opc == LST_BRW_WRITE,
        len,
        offset,
        check: Check::from_wire(flags).ok_or(Errno::EINVAL)?,
        flags,
    }))
}

/// Parses the list of destinations. Each page holds [`SFW_ID_PER_PAGE`] ids, and no id spans two
/// pages. Only the NID of each id is used. The announced length does not count the gaps of 4 bytes
/// between pages, so the end of a list of several pages is missing. With two pages, the process id
/// of the last entry is missing; with more pages, also a part of a NID, and the result is `EINVAL`.
fn destinations(list: &[u8], count: usize) -> Result<Vec<Nid>, Errno> {
    let offset_of = |i: usize| {
        i / SFW_ID_PER_PAGE as usize * PAGE + i % SFW_ID_PER_PAGE as usize * LnetProcessIdPacked::SIZE
    };
    let nid = |i: usize| {
        let bytes = list.get(offset_of(i)..)?.first_chunk()?;
        Some(Nid(u64::from_le_bytes(*bytes))).filter(|&nid| nid != Nid::ANY)
    };
    (0..count).map(|i| nid(i).ok_or(Errno::EINVAL)).collect()
}

/// Encodes the list of destinations of a client's test, with the gaps between pages.
pub fn write_destinations(nids: &[Nid]) -> Vec<u8> {
    let mut list = Vec::new();
    for page in nids.chunks(SFW_ID_PER_PAGE as usize) {
        list.resize(list.len().next_multiple_of(PAGE), 0);
        for &nid in page {
            let id = LnetProcessIdPacked {
                nid,
                pid: wire::LNET_PID_LUSTRE,
            };
            list.extend_from_slice(&id.to_bytes());
        }
    }
    list
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::Ipv4Addr;
    use wire::{LST_BRW_CHECK_FULL, LstSid};

    fn nids(n: u32) -> Vec<Nid> {
        (0..n)
            .map(|i| Nid::tcp(Ipv4Addr::from_bits(0x0a00_0000 + i), 0))
            .collect()
    }

    fn request() -> SrpcTestReqst {
        SrpcTestReqst {
            tsr_sid: LstSid {
                ses_nid: nids(1)[0],
                ses_stamp: 1,
            },
            tsr_service: SRPC_SERVICE_BRW,
            tsr_loop: -1_i32 as u32,
            tsr_concur: 3,
            tsr_is_client: 1,
            tsr_ndest: 2,
            ..SrpcTestReqst::default()
        }
    }

    fn with_v1(v1: TestBulkReqV1) -> SrpcTestReqst {
        SrpcTestReqst {
            tsr_u: v1.to_bytes()[..].try_into().unwrap(),
            ..request()
        }
    }

    const WRITE: TestBulkReqV1 = TestBulkReqV1 {
        blk_opc: LST_BRW_WRITE as u16,
        blk_flags: LST_BRW_CHECK_FULL as u16,
        blk_len: 5000,
        blk_offset: 4096 + 16,
    };

    #[test]
    fn bulk_parameters_of_both_versions_are_parsed() {
        let list = write_destinations(&nids(2));
        let spec = parse(&with_v1(WRITE), &list, LST_FEAT_BULK_LEN).unwrap();
        let brw = Brw {
            write: true,
            len: 5000,
            offset: 16,
            check: Check::Full,
            flags: LST_BRW_CHECK_FULL,
        };
        assert_eq!(spec.operation, Operation::Brw(brw));
        assert_eq!(
            (spec.destinations, spec.concurrency, spec.loops),
            (nids(2), 3, None)
        );
        let v0 = TestBulkReq {
            blk_opc: LST_BRW_READ,
            blk_npg: 3,
            blk_flags: 1,
        };
        let v0_request = SrpcTestReqst {
            tsr_u: v0.to_bytes()[..].try_into().unwrap(),
            tsr_loop: 9,
            ..request()
        };
        let spec = parse(&v0_request, &list, 0).unwrap();
        assert!(matches!(
            spec.operation,
            Operation::Brw(Brw {
                write: false,
                len: 12_288,
                offset: 0,
                ..
            })
        ));
        assert_eq!(spec.loops, Some(9));
    }

    #[test]
    fn invalid_tests_are_errors() {
        let list = write_destinations(&nids(2));
        for bad in [
            TestBulkReqV1 { blk_opc: 3, ..WRITE },
            TestBulkReqV1 {
                blk_flags: 9,
                ..WRITE
            },
            TestBulkReqV1 {
                blk_len: LNET_MTU + 1,
                ..WRITE
            },
            TestBulkReqV1 { blk_len: 0, ..WRITE },
            TestBulkReqV1 {
                blk_offset: 4,
                ..WRITE
            },
        ] {
            assert_eq!(parse(&with_v1(bad), &list, 1), Err(Errno::EINVAL), "{bad:?}");
        }
        assert_eq!(parse(&with_v1(WRITE), &list[..15], 1), Err(Errno::EINVAL));
        let good = request();
        assert_eq!(check(&good), Ok(()));
        for bad in [
            SrpcTestReqst { tsr_loop: 0, ..good },
            SrpcTestReqst {
                tsr_concur: 0,
                ..good
            },
            SrpcTestReqst {
                tsr_concur: 1025,
                ..good
            },
            SrpcTestReqst { tsr_ndest: 0, ..good },
            SrpcTestReqst {
                tsr_ndest: 87_297,
                ..good
            },
            SrpcTestReqst {
                tsr_service: 4,
                ..good
            },
            SrpcTestReqst {
                tsr_service: 13,
                ..good
            },
            SrpcTestReqst {
                tsr_sid: LstSid {
                    ses_nid: Nid::ANY,
                    ses_stamp: -1,
                },
                ..good
            },
        ] {
            assert_eq!(check(&bad), Err(Errno::EINVAL), "{bad:?}");
        }
    }

    #[test]
    fn each_page_holds_341_ids() {
        let all = nids(682);
        let list = write_destinations(&all);
        assert_eq!(list.len(), 4096 + 341 * 12);
        assert_eq!(&list[8..12], &12345_u32.to_le_bytes());
        // The length in a message does not count the gaps between pages.
        assert_eq!(destinations(&list[..682 * 12], 682), Ok(all));
    }
}
