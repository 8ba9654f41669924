//! Clients of older releases: their connect flags, and the parts of the captured requests that they
//! do not support. The other requests have had the same format since 2.12.

use capture::trace::Request;
use std::sync::Arc;
use testbase::captured::name_of;
use wire::format::Rmf;
use wire::{
    Message, OBD_CONNECT_FLAGS2, OBD_CONNECT2_LSEEK, OBD_CONNECT2_REP_MBITS, ObdConnectData, PtlrpcBody,
    WireStruct,
};

/// A client release.
#[derive(Debug)]
pub(crate) struct ClientRelease {
    /// Suffix of the release in the name of its counts file.
    pub(crate) name: &'static str,
    older: Option<OlderRelease>,
}

/// The properties of an older release.
#[derive(Debug)]
struct OlderRelease {
    /// `ocd_version`.
    version: u32,
    /// `ocd_connect_flags` and `ocd_connect_flags2` for each kind of target.
    mds: (u64, u64),
    ost: (u64, u64),
    mgs: (u64, u64),
    /// The supported attributes: `OBD_MD_*`.
    attrs: u64,
    /// Whether files may be encrypted: requests that create a file then have a buffer for the
    /// encryption context.
    supports_encryption: bool,
    /// Whether the client sends OST_FALLOCATE.
    supports_fallocate: bool,
}

impl ClientRelease {
    /// The captured clients.
    pub(crate) const CAPTURED: ClientRelease = ClientRelease {
        name: "",
        older: None,
    };
    /// 2.12.9. Some bits have other meanings there: for OSTs, 0x40 means a separate portal, and
    /// 0x400 means server-side locks for truncates.
    pub(crate) const V2_12: ClientRelease = ClientRelease {
        name: "-2.12",
        older: Some(OlderRelease {
            version: 0x020c_0900,
            mds: (0xae7e_5e79_e374_d7b8, 0x2_4dac),
            ost: (0xb046_5af2_e364_0478, 0x2),
            mgs: (0x2000_4110_0100_2020, 0),
            attrs: 0x0f90_71fd_fb5f_6fff,
            supports_encryption: false,
            supports_fallocate: false,
        }),
    };
    /// 2.15.5.
    pub(crate) const V2_15: ClientRelease = ClientRelease {
        name: "-2.15",
        older: Some(OlderRelease {
            version: 0x020f_0500,
            mds: (0xae7e_5e7b_e374_d3b8, 0xc1e_ffbd),
            ost: (0xa046_5af2_e364_0078, 0x14_8202),
            mgs: (0xa000_4110_0100_2020, 0x10_0000),
            attrs: 0x7f90_71fd_fb5f_6fff,
            supports_encryption: true,
            supports_fallocate: true,
        }),
    };

    pub(crate) fn is_captured(&self) -> bool {
        self.older.is_none()
    }

    /// The reason that a client of this release does not send a request; `None`: the client sends
    /// the request.
    pub(crate) fn reason_not_sent(&self, request: &Request) -> Option<&'static str> {
        let older = self.older.as_ref()?;
        match request.body.pb_opc {
            wire::OST_SEEK if older.ost.1 & OBD_CONNECT2_LSEEK == 0 => Some("OST_SEEK"),
            wire::MDS_BATCH => Some("MDS_BATCH"),
            wire::OST_FALLOCATE if !older.supports_fallocate => Some("OST_FALLOCATE"),
            _ => None,
        }
    }

    /// Converts a request to the format of this release.
    pub(crate) fn downgrade(&self, request: &Request, has_bulk: bool, msg: &mut Message) {
        let (Some(older), Some(format)) = (&self.older, request.format) else {
            return;
        };
        if let Some(data) = format.request_index(Rmf::ConnectData) {
            msg.bufs[data] = older.connect_data(request).to_bytes();
        }
        if let (false, Some(at)) = (older.supports_encryption, format.request_index(Rmf::FileEncctx)) {
            msg.bufs.truncate(at);
        }
        if let Some(at) = format
            .request_index(Rmf::MdtBody)
            .filter(|&at| !msg.buf(at).is_empty())
        {
            let mut body: wire::MdtBody = msg.get(at).unwrap();
            body.mbo_valid &= older.attrs;
            msg.bufs[at] = body.to_bytes();
        }
        let body = msg.body().unwrap();
        // With neither `OBD_CONNECT2_REP_MBITS` nor bulk, the body has no match bits: the client
        // expects the reply at the XID.
        let has_mbits = older.flags_for(request).1 & OBD_CONNECT2_REP_MBITS != 0 || has_bulk;
        msg.set_body(&PtlrpcBody {
            pb_mbits: if has_mbits { body.pb_mbits } else { 0 },
            ..body
        });
    }

    /// Describes a connect reply that grants unrequested flags, checksum types or inode bits, or a
    /// larger bulk than requested.
    pub(crate) fn unrequested_grant(&self, request: &Arc<Request>, reply: &Message) -> Option<String> {
        let data = request.format?.request_index(Rmf::ConnectData)?;
        let connect_data = match &self.older {
            Some(older) => older.connect_data(request),
            None => request.msg.get(data).unwrap(),
        };
        let granted: ObdConnectData = reply.get(1).ok()?;
        let flags2 = match granted.ocd_connect_flags & OBD_CONNECT_FLAGS2 {
            0 => 0,
            _ => connect_data.ocd_connect_flags2,
        };
        let extra = granted.ocd_connect_flags & !connect_data.ocd_connect_flags;
        let extra2 = granted.ocd_connect_flags2 & !flags2;
        let extra_checksums = u64::from(granted.ocd_cksum_types & !connect_data.ocd_cksum_types);
        let extra_ibits = granted.ocd_ibits_known & !connect_data.ocd_ibits_known;
        let larger_bulk = granted.ocd_brw_size > connect_data.ocd_brw_size;
        let wrong = extra | extra2 | extra_checksums | extra_ibits != 0 || larger_bulk;
        wrong.then(|| {
            format!(
                "{} is granted more than it requested: {granted:?}",
                name_of(request)
            )
        })
    }
}

impl OlderRelease {
    /// `ocd_connect_flags` and `ocd_connect_flags2` for the target of a request.
    fn flags_for(&self, request: &Request) -> (u64, u64) {
        match request.portal {
            wire::MGS_REQUEST_PORTAL => self.mgs,
            wire::OST_REQUEST_PORTAL | wire::OST_IO_PORTAL | wire::OST_CREATE_PORTAL => self.ost,
            // Cancellations for all kinds of targets use one portal, without bulk.
            wire::LDLM_CANCEL_REQUEST_PORTAL => (0, self.ost.1 & self.mds.1),
            _ => self.mds,
        }
    }

    /// The connect data that the release requests.
    fn connect_data(&self, request: &Request) -> ObdConnectData {
        let data = request.format.and_then(|f| f.request_index(Rmf::ConnectData));
        let captured: ObdConnectData = request.msg.get(data.unwrap()).unwrap();
        let (flags, flags2) = self.flags_for(request);
        ObdConnectData {
            ocd_connect_flags: flags,
            ocd_connect_flags2: flags2,
            ocd_version: self.version,
            ..captured
        }
    }
}
