//! Arguments of all procedures: what another implementation encodes is what we decode; and no
//! truncation or mutation of it makes ours panic.

use crate::nfs_oracle;
use crate::nfs_support;

use flagstone_gateway::nfs3::wire::Procedure;
use flagstone_gateway::nfs3::wire::args::{Arguments, WRITE_HEAD_BYTES_MAX};
use flagstone_gateway::rpc::call::{
    AuthSys, CALL_HEADER_BYTES_MAX, Call, Credential, Groups, decode_call, put_call,
};
use flagstone_gateway::rpc::program;
use flagstone_gateway::rpc::record::{RecordLimits, RecordMachine, begin_record, finish_record};
use flagstone_gateway::xdr::{Reader, Writer, XdrError};
use nfs_oracle::calls::Pieces;
use nfs_support::Rng;
use nfs_support::cases::{self, Answer};

/// Random messages of each procedure.
const MESSAGES: u64 = 400;

#[test]
fn what_others_encode_is_what_we_decode() {
    for procedure in Procedure::ALL {
        for seed in 0..MESSAGES {
            let pieces = Pieces::random(&mut Rng(seed));
            let bytes = pieces.bytes(procedure);
            let mut record = Reader::new(&bytes);
            let decoded = Arguments::decode(procedure, &mut record);
            assert_eq!(decoded, Ok(pieces.expected(procedure)), "seed {seed}");
            assert_eq!(record.left_bytes(), 0);
        }
    }
}

/// Every cut of a message is an error, and not one that more bytes could mend.
#[test]
fn every_truncation_is_an_error() {
    for procedure in Procedure::ALL {
        for seed in 0..20 {
            let bytes = Pieces::random(&mut Rng(seed)).bytes(procedure);
            for end in 0..bytes.len() {
                let cut = Arguments::decode(procedure, &mut Reader::new(&bytes[..end]));
                assert!(
                    matches!(cut, Err(XdrError::Truncated { .. })),
                    "{procedure:?} seed {seed} cut at {end}: {cut:?}"
                );
            }
        }
    }
}

/// Any word of a message replaced by the largest number: what is a length is refused.
#[test]
fn largest_lengths_never_panic() {
    let mut refused = 0;
    for procedure in Procedure::ALL {
        for seed in 0..20 {
            let bytes = Pieces::random(&mut Rng(seed)).bytes(procedure);
            for at in (0..bytes.len()).step_by(4) {
                let mut bytes = bytes.clone();
                bytes[at..at + 4].fill(0xff);
                let decoded = Arguments::decode(procedure, &mut Reader::new(&bytes));
                refused += u32::from(decoded.is_err());
            }
        }
    }
    assert!(refused > 1000, "only {refused} were refused");
}

/// A driver that has received the first part of a record knows where the payload of a WRITE will be.
#[test]
fn a_payload_is_located_before_it_is_received() {
    for seed in 0..MESSAGES {
        let mut rng = Rng(seed);
        let pieces = Pieces::random(&mut rng);
        let mut stream = Vec::new();
        let at = begin_record(&mut stream);
        let call = Call {
            xid: 1,
            program: program::NFS,
            version: 3,
            procedure: Procedure::Write as u32,
            credential: Credential::None,
        };
        put_call(&mut Writer::new(&mut stream), &call);
        stream.extend(pieces.bytes(Procedure::Write));
        finish_record(&mut stream, at, 0);

        let mut machine = RecordMachine::new(RecordLimits {
            record_bytes_max: 1 << 20,
            fragments_max: 1,
        });
        let (header, record) = stream.split_first_chunk().expect("a header");
        machine.handle_header(*header).expect("within limits");
        let record_bytes = machine.record_bytes().expect("the last fragment") as usize;
        let at_hand = record_bytes.min(CALL_HEADER_BYTES_MAX + WRITE_HEAD_BYTES_MAX);
        let mut head = Reader::head(&record[..at_hand], record_bytes);
        let found = decode_call(&mut head).expect("a call");
        assert_eq!(found, call);
        let Ok(Arguments::Write(write)) = Arguments::decode(Procedure::Write, &mut head) else {
            panic!("seed {seed}: a WRITE");
        };
        assert_eq!(&record[write.payload], pieces.payload());
        assert_eq!(head.left_bytes(), 0);
    }
}

/// A call of any program as one record.
fn record(rng: &mut Rng) -> Vec<u8> {
    let procedure = Procedure::ALL[rng.below(22) as usize];
    let machine = rng.bytes(255);
    let groups: Vec<u32> = (0..rng.below(17)).map(|_| rng.word()).collect();
    let sys = AuthSys {
        stamp: rng.word(),
        machine: &machine,
        uid: rng.word(),
        gid: rng.word(),
        groups: Groups::new(&groups),
    };
    let (program, version) = match rng.below(6) {
        0 => (program::MOUNT, 3),
        1 => (program::NFS_ACL, 3),
        2 => (program::PORTMAP, 2 + rng.below(3) as u32),
        _ => (program::NFS, 3),
    };
    let procedure_number = match program {
        program::NFS => procedure as u32,
        _ => rng.below(7) as u32,
    };
    let mut out = Vec::new();
    let call = Call {
        xid: rng.word(),
        program,
        version,
        procedure: procedure_number,
        credential: if rng.flip() {
            Credential::Sys(sys)
        } else {
            Credential::None
        },
    };
    put_call(&mut Writer::new(&mut out), &call);
    match program {
        program::NFS_ACL => {
            // A handle, a mask, and two ACLs of one entry.
            let words = [
                0, 0x0f, 1, 1, 1, 0, 7, 1, 1, 0x1020, 0, 5, // SETACL reads all of them
            ];
            out.extend(words.into_iter().flat_map(u32::to_be_bytes));
        }
        _ => out.extend(Pieces::random(rng).bytes(procedure)),
    }
    out
}

/// Records of a stream, cut into fragments.
fn stream(rng: &mut Rng) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..=rng.below(3) {
        let record = record(rng);
        let cut = rng.below(record.len() as u64) as usize;
        let (first, last) = record.split_at(cut);
        if rng.flip() {
            stream.extend((first.len() as u32).to_be_bytes());
            stream.extend(first);
            stream.extend((last.len() as u32 | 1 << 31).to_be_bytes());
            stream.extend(last);
        } else {
            stream.extend((record.len() as u32 | 1 << 31).to_be_bytes());
            stream.extend(record);
        }
    }
    stream
}

/// The same function as in the fuzz target `rpc_calls`.
#[test]
fn mutated_streams() {
    let mut rng = Rng(0x5eed);
    let mut seen = [0u32; 4];
    for case in 0..20_000 {
        let mut bytes = stream(&mut rng);
        if case % 4 != 0 {
            rng.mutate(&mut bytes);
        }
        let whole = cases::stream(&bytes, usize::MAX);
        let portion = 1 + rng.below(40) as usize;
        assert_eq!(cases::stream(&bytes, portion), whole);
        for answer in whole {
            seen[match answer {
                Answer::Closed => 0,
                Answer::Denied => 1,
                Answer::Refused => 2,
                Answer::Decoded => 3,
            }] += 1;
        }
    }
    let least = seen.into_iter().min();
    assert!(least > Some(100), "each answer is given often: {seen:?}");
}

/// The same function as in the fuzz target `nfs3_calls`.
#[test]
fn mutated_arguments() {
    let mut rng = Rng(0xa265);
    let mut seen = [0u32; 2];
    for case in 0..20_000 {
        let procedure = Procedure::ALL[rng.below(22) as usize];
        let mut arguments = Pieces::random(&mut rng).bytes(procedure);
        if case % 4 != 0 {
            rng.mutate(&mut arguments);
        }
        let bytes = [&(procedure as u32).to_be_bytes()[..], &arguments].concat();
        let is_decoded = cases::nfs_call(&bytes).expect("there is a first word");
        assert!(is_decoded || case % 4 != 0, "a valid message");
        seen[usize::from(is_decoded)] += 1;
    }
    assert!(seen.into_iter().min() > Some(1000), "{seen:?}");
}
