//! RPC headers, MOUNT and the portmapper against another implementation, in both directions.

use crate::nfs_oracle;
use crate::nfs_support;

use flagstone_gateway::nfs3::mount::{
    self, MountError, put_export, put_exports_end, put_mount_failed, put_mounted, put_mounts,
};
use flagstone_gateway::nfs3::portmap::{self, Mapping, put_mappings, put_registration};
use flagstone_gateway::nfs3::wire::attributes::RawHandle;
use flagstone_gateway::rpc::call::{AuthSys, Call, Credential, Groups, decode_call, put_call};
use flagstone_gateway::rpc::record::{begin_record, finish_record};
use flagstone_gateway::rpc::reply::{
    Accepted, AuthStat, Denial, Reply, decode_reply, put_accepted, put_denied,
};
use flagstone_gateway::xdr::{Reader, Writer};
use nfs_oracle::{check, pack};
use nfs_support::Rng;
use nfs3_types::rpc as theirs;
use nfs3_types::xdr_codec::{List, Opaque};
use nfs3_types::{mount as their_mount, portmap as their_portmap};

const MESSAGES: u64 = 400;

#[test]
fn calls() {
    for seed in 0..MESSAGES {
        let mut rng = Rng(seed);
        let machine = rng.bytes(255);
        let groups: Vec<u32> = (0..rng.below(17)).map(|_| rng.word()).collect();
        let [stamp, uid, gid, xid, program, version, procedure] =
            std::array::from_fn(|_| rng.word());
        let (credential, cred) = if rng.flip() {
            let ours = AuthSys {
                stamp,
                machine: &machine,
                uid,
                gid,
                groups: Groups::new(&groups),
            };
            let cred = theirs::opaque_auth::auth_unix(&theirs::auth_unix {
                stamp,
                machinename: Opaque::owned(machine.clone()),
                uid,
                gid,
                gids: groups.clone(),
            });
            (Credential::Sys(ours), cred)
        } else {
            (Credential::None, theirs::opaque_auth::default())
        };
        let call = Call {
            xid,
            program,
            version,
            procedure,
            credential,
        };
        let bytes = pack(&theirs::rpc_msg {
            xid,
            body: theirs::msg_body::CALL(theirs::call_body {
                rpcvers: 2,
                prog: program,
                vers: version,
                proc: procedure,
                cred,
                verf: theirs::opaque_auth::default(),
            }),
        });
        let mut record = Reader::new(&bytes);
        assert_eq!(decode_call(&mut record).as_ref(), Ok(&call), "seed {seed}");
        assert_eq!(record.left_bytes(), 0);
        let mut ours = Vec::new();
        put_call(&mut Writer::new(&mut ours), &call);
        assert_eq!(ours, bytes, "seed {seed}");
        for end in 0..bytes.len() {
            assert!(decode_call(&mut Reader::new(&bytes[..end])).is_err());
        }
    }
}

/// Our reply, read by them and by us, and their bytes of what they have read.
fn reply(outcome: Result<Accepted, Denial>) -> theirs::reply_body<'static> {
    let xid = 0xfeed;
    let mut ours = Vec::new();
    match outcome {
        Ok(accepted) => put_accepted(&mut Writer::new(&mut ours), xid, accepted),
        Err(denial) => put_denied(&mut Writer::new(&mut ours), xid, denial),
    }
    let decoded = decode_reply(&mut Reader::new(&ours));
    assert_eq!(decoded, Ok(Reply { xid, outcome }));
    let message: theirs::rpc_msg<'_, '_> = check(&ours);
    assert_eq!(message.xid, xid);
    match message.body {
        theirs::msg_body::REPLY(body) => body,
        theirs::msg_body::CALL(_) => panic!("expected a reply"),
    }
}

#[test]
fn replies() {
    use theirs::accept_stat_data as data;
    use theirs::auth_stat;
    use theirs::rejected_reply as rejected;
    let accepted = |accepted| match reply(Ok(accepted)) {
        theirs::reply_body::MSG_ACCEPTED(reply) => reply.reply_data,
        other => panic!("expected an accepted reply, found {other:?}"),
    };
    let denied = |denial| match reply(Err(denial)) {
        theirs::reply_body::MSG_DENIED(reply) => reply,
        other => panic!("expected a denial, found {other:?}"),
    };
    assert!(matches!(accepted(Accepted::Success), data::SUCCESS));
    let unavailable = accepted(Accepted::ProgramUnavailable);
    assert!(matches!(unavailable, data::PROG_UNAVAIL));
    let mismatch = accepted(Accepted::ProgramMismatch { low: 3, high: 4 });
    assert!(matches!(mismatch, data::PROG_MISMATCH { low: 3, high: 4 }));
    let unavailable = accepted(Accepted::ProcedureUnavailable);
    assert!(matches!(unavailable, data::PROC_UNAVAIL));
    let garbage = accepted(Accepted::GarbageArguments);
    assert!(matches!(garbage, data::GARBAGE_ARGS));
    let error = accepted(Accepted::SystemError);
    assert!(matches!(error, data::SYSTEM_ERR));
    let mismatch = denied(Denial::RpcMismatch { low: 2, high: 2 });
    assert!(matches!(
        mismatch,
        rejected::RPC_MISMATCH { low: 2, high: 2 }
    ));
    for (ours, stat) in [
        (AuthStat::BadCredential, auth_stat::AUTH_BADCRED),
        (AuthStat::RejectedCredential, auth_stat::AUTH_REJECTEDCRED),
        (AuthStat::BadVerifier, auth_stat::AUTH_BADVERF),
        (AuthStat::RejectedVerifier, auth_stat::AUTH_REJECTEDVERF),
        (AuthStat::TooWeak, auth_stat::AUTH_TOOWEAK),
        (AuthStat::InvalidResponse, auth_stat::AUTH_INVALIDRESP),
        (AuthStat::Failed, auth_stat::AUTH_FAILED),
    ] {
        let denial = denied(Denial::Auth(ours));
        assert!(matches!(denial, rejected::AUTH_ERROR(found) if found == stat));
    }
}

#[test]
fn record_marks() {
    for len in [0, 1, 4, 1000] {
        let mut out = Vec::new();
        let at = begin_record(&mut out);
        out.resize(at + 4 + len, 7);
        finish_record(&mut out, at, 1 << 20);
        let header = theirs::fragment_header::from(*out.first_chunk().expect("a header"));
        assert!(header.eof());
        assert_eq!(header.fragment_length() as usize, len + (1 << 20));
    }
}

#[test]
fn mounting() {
    for seed in 0..MESSAGES {
        let mut rng = Rng(seed);
        let path = rng.bytes(1024);
        let bytes = pack(&their_mount::dirpath(Opaque::borrowed(&path)));
        let mnt = mount::Arguments::decode(1, &mut Reader::new(&bytes));
        assert_eq!(mnt, Some(Ok(mount::Arguments::Mount(&path))));
        let umnt = mount::Arguments::decode(3, &mut Reader::new(&bytes));
        assert_eq!(umnt, Some(Ok(mount::Arguments::Unmount(&path))));
        for end in 0..bytes.len() {
            let cut = mount::Arguments::decode(1, &mut Reader::new(&bytes[..end]));
            assert!(matches!(cut, Some(Err(_))));
        }

        let handle = rng.bytes(64);
        let mut ours = Vec::new();
        put_mounted(&mut Writer::new(&mut ours), RawHandle(&handle));
        match check::<their_mount::mountres3<'_>>(&ours) {
            their_mount::mountres3::Ok(mounted) => {
                assert_eq!(mounted.fhandle.0.as_ref(), handle);
                assert_eq!(mounted.auth_flavors, [1, 0]);
            }
            their_mount::mountres3::Err(error) => panic!("expected a handle, found {error}"),
        }
        lists(&mut rng);
    }
    for error in MountError::ALL {
        let mut ours = Vec::new();
        put_mount_failed(&mut Writer::new(&mut ours), error);
        match check::<their_mount::mountres3<'_>>(&ours) {
            their_mount::mountres3::Err(code) => assert_eq!(code as u32, error as u32),
            their_mount::mountres3::Ok(_) => panic!("expected {error:?}"),
        }
    }
}

/// Lists of exports and of mounts.
fn lists(rng: &mut Rng) {
    let names =
        |rng: &mut Rng| -> Vec<Vec<u8>> { (0..rng.below(4)).map(|_| rng.bytes(255)).collect() };
    let exports: Vec<(Vec<u8>, Vec<Vec<u8>>)> = (0..rng.below(4))
        .map(|_| (rng.bytes(1024), names(rng)))
        .collect();
    let mut ours = Vec::new();
    let mut writer = Writer::new(&mut ours);
    for (path, groups) in &exports {
        put_export(&mut writer, path, groups.iter().map(Vec::as_slice));
    }
    put_exports_end(&mut writer);
    let theirs = exports
        .iter()
        .map(|(path, groups)| their_mount::export_node {
            ex_dir: their_mount::dirpath(Opaque::borrowed(path)),
            ex_groups: List(
                groups
                    .iter()
                    .map(|group| their_mount::name(Opaque::borrowed(group)))
                    .collect(),
            ),
        });
    assert_eq!(ours, pack(&List(theirs.collect())));

    let mut ours = Vec::new();
    let mounts = exports
        .iter()
        .map(|(path, _)| (&path[..path.len().min(255)], path.as_slice()));
    put_mounts(&mut Writer::new(&mut ours), mounts.clone());
    let theirs = mounts.map(|(host, path)| their_mount::mountbody {
        ml_hostname: their_mount::name(Opaque::borrowed(host)),
        ml_directory: their_mount::dirpath(Opaque::borrowed(path)),
    });
    assert_eq!(ours, pack(&List(theirs.collect())));
}

#[test]
fn portmapper() {
    for seed in 0..MESSAGES {
        let mut rng = Rng(seed);
        let mapping = Mapping {
            program: rng.word(),
            version: rng.word(),
            transport: rng.word(),
            port: rng.word(),
        };
        let their = their_portmap::mapping {
            prog: mapping.program,
            vers: mapping.version,
            prot: mapping.transport,
            port: mapping.port,
        };
        let bytes = pack(&their);
        let decoded = portmap::Arguments::decode(3, &mut Reader::new(&bytes));
        assert_eq!(decoded, Some(Ok(portmap::Arguments::GetPort(mapping))));
        let mut ours = Vec::new();
        put_mappings(&mut Writer::new(&mut ours), &[mapping, mapping]);
        assert_eq!(ours, pack(&List(vec![their, their])));
        // Our own call.
        let mut ours = Vec::new();
        put_registration(&mut Writer::new(&mut ours), 5, &mapping, true);
        let head = ours.len() - bytes.len();
        assert_eq!(ours[head..], bytes);
        let message: theirs::rpc_msg<'_, '_> = check(&ours[..head]);
        match message.body {
            theirs::msg_body::CALL(call) => {
                assert_eq!((call.prog, call.vers, call.proc), (100_000, 2, 1));
            }
            theirs::msg_body::REPLY(_) => panic!("expected a call"),
        }
    }
}
