//! Tests of call headers: golden bytes, and what each wrong header is answered with.

use super::*;

/// A call by hand: GETATTR of NFS version 3 with AUTH_SYS.
const SYS_CALL: [u8; 80] = [
    0x12, 0x34, 0x56, 0x78, // xid
    0, 0, 0, 0, // call
    0, 0, 0, 2, // RPC version
    0x00, 0x01, 0x86, 0xa3, // 100003
    0, 0, 0, 3, // version
    0, 0, 0, 1, // procedure
    0, 0, 0, 1, // AUTH_SYS
    0, 0, 0, 36, // its length
    0, 0, 0, 9, // stamp
    0, 0, 0, 5, b'h', b'o', b's', b't', b'1', 0, 0, 0, // machine
    0, 0, 0x03, 0xe8, // uid 1000
    0, 0, 0, 100, // gid
    0, 0, 0, 2, // groups
    0, 0, 0, 4, 0, 0, 0, 27, // 4 and 27
    0, 0, 0, 0, // AUTH_NONE
    0, 0, 0, 0, // its length
    0xaa, 0xbb, 0xcc, 0xdd, // arguments
];

fn sys_call() -> Call<'static> {
    Call {
        xid: 0x1234_5678,
        program: super::super::program::NFS,
        version: 3,
        procedure: 1,
        credential: Credential::Sys(AuthSys {
            stamp: 9,
            machine: b"host1",
            uid: 1000,
            gid: 100,
            groups: Groups::new(&[4, 27]),
        }),
    }
}

fn decode(bytes: &[u8]) -> Result<Call<'_>, BadCall> {
    decode_call(&mut Reader::new(bytes))
}

/// The call above with one word replaced.
fn with_word(at: usize, word: u32) -> Vec<u8> {
    let mut bytes = SYS_CALL.to_vec();
    bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
    bytes
}

fn denial(bytes: &[u8]) -> Denial {
    match decode(bytes) {
        Err(BadCall::Denied { xid, denial }) => {
            assert_eq!(xid, 0x1234_5678);
            denial
        }
        other => panic!("expected a denial, found {other:?}"),
    }
}

/// [rfc5531 "Appendix A"] test
#[test]
fn a_call_with_auth_sys() {
    let mut record = Reader::new(&SYS_CALL);
    assert_eq!(decode_call(&mut record), Ok(sys_call()));
    assert_eq!(record.u32(), Ok(0xaabb_ccdd));
    let mut out = Vec::new();
    put_call(&mut Writer::new(&mut out), &sys_call());
    assert_eq!(out, SYS_CALL[..76]);
}

/// [rfc5531 10.1] test
#[test]
fn a_call_with_auth_none() {
    let call = Call {
        credential: Credential::None,
        ..sys_call()
    };
    let mut out = Vec::new();
    put_call(&mut Writer::new(&mut out), &call);
    assert_eq!(out[..24], SYS_CALL[..24]);
    assert_eq!(out[24..], [0; 16]);
    assert_eq!(decode(&out), Ok(call));
}

#[test]
fn every_truncation_is_unanswerable() {
    for end in 0..76 {
        let bad = decode(&SYS_CALL[..end]).expect_err("cut");
        let BadCall::Unanswerable(error) = bad else {
            panic!("{end}: {bad}");
        };
        assert!(!error.is_incomplete());
        let head = decode_call(&mut Reader::head(&SYS_CALL[..end], SYS_CALL.len()));
        let BadCall::Unanswerable(error) = head.expect_err("cut") else {
            panic!("{end}");
        };
        assert!(error.is_incomplete(), "{end}: {error}");
    }
}

#[test]
fn a_reply_is_no_call() {
    let error = XdrError::Mismatch {
        what: "message type",
        at: 4,
        expected: 0,
        found: 1,
    };
    assert_eq!(decode(&with_word(4, 1)), Err(BadCall::Unanswerable(error)));
}

#[test]
fn another_rpc_version_is_answered_with_ours() {
    let expected = Denial::RpcMismatch { low: 2, high: 2 };
    assert_eq!(denial(&with_word(8, 3)), expected);
    // Whatever follows, and however little.
    assert_eq!(denial(&with_word(8, 3)[..12]), expected);
}

#[test]
fn bad_credentials() {
    let bad = Denial::Auth(AuthStat::BadCredential);
    assert_eq!(denial(&with_word(24, 6)), bad, "RPCSEC_GSS");
    assert_eq!(denial(&with_word(24, 0)), bad, "AUTH_NONE with a body");
    assert_eq!(denial(&with_word(28, 401)), bad, "too long");
    assert_eq!(denial(&with_word(28, u32::MAX)), bad, "far too long");
    assert_eq!(denial(&with_word(36, 256)), bad, "machine name");
    assert_eq!(denial(&with_word(36, u32::MAX)), bad, "machine name");
    assert_eq!(denial(&with_word(56, 3)), bad, "more groups than bytes");
    assert_eq!(denial(&with_word(56, 17)), bad, "too many groups");
    assert_eq!(denial(&with_word(56, u32::MAX)), bad, "too many groups");
    assert_eq!(denial(&with_word(56, 1)), bad, "bytes behind the groups");
}

#[test]
fn bad_verifiers() {
    let bad = Denial::Auth(AuthStat::BadVerifier);
    assert_eq!(denial(&with_word(68, 1)), bad, "flavour");
    assert_eq!(denial(&with_word(72, 4)), bad, "body");
    assert_eq!(denial(&with_word(72, 401)), bad, "too long");
}

#[test]
fn as_much_as_a_credential_may_hold() {
    let groups: Vec<u32> = (0..GROUPS_MAX as u32).collect();
    let machine = [b'm'; MACHINE_NAME_BYTES_MAX as usize];
    let call = Call {
        credential: Credential::Sys(AuthSys {
            stamp: 0,
            machine: &machine,
            uid: u32::MAX,
            gid: u32::MAX,
            groups: Groups::new(&groups),
        }),
        ..sys_call()
    };
    let mut out = Vec::new();
    put_call(&mut Writer::new(&mut out), &call);
    assert!(out.len() <= CALL_HEADER_BYTES_MAX);
    assert_eq!(decode(&out), Ok(call));
}
