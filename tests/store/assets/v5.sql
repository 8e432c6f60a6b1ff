BEGIN TRANSACTION;
CREATE TABLE calibrations (
	device VARCHAR NOT NULL, 
	dialect VARCHAR NOT NULL, 
	threads INTEGER NOT NULL, 
	document JSON NOT NULL, 
	CONSTRAINT pk_calibrations PRIMARY KEY (device, dialect, threads)
);
INSERT INTO "calibrations" VALUES('device-a','fake',2,'{"device": "device-a", "dialect": "fake", "threads": 2, "slots": 2, "points": [{"kind": "compute", "degree": 2, "deviation": 0.01, "tau": 0.97, "gain": 1.9}, {"kind": "memory", "degree": 2, "deviation": 0.2, "tau": 0.8, "gain": 1.1}], "isolated_tau": {"compute": 0.98}, "degrees": {"compute": 2, "memory": 1}, "flop_per_s": 100000000000.0, "bytes_per_s": 10000000000.0, "clock_overhead_s": 2e-07, "made_at": 1700000000.0}');
CREATE TABLE devices (
	fingerprint VARCHAR NOT NULL, 
	host VARCHAR NOT NULL, 
	facts JSON NOT NULL, 
	first_seen DOUBLE NOT NULL, 
	last_seen DOUBLE NOT NULL, 
	CONSTRAINT pk_devices PRIMARY KEY (fingerprint, host)
);
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job_id VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	payload JSON NOT NULL, 
	created_at DOUBLE NOT NULL
);
CREATE TABLE extractions (
	network VARCHAR NOT NULL, 
	target_key VARCHAR NOT NULL, 
	compiler VARCHAR NOT NULL, 
	document JSON NOT NULL, 
	CONSTRAINT pk_extractions PRIMARY KEY (network, target_key, compiler), 
	CONSTRAINT fk_extractions_network FOREIGN KEY(network) REFERENCES networks (digest)
);
INSERT INTO "extractions" VALUES('net-1','f6a8fa4523065fe1','fake-1','[{"workload": {"key": "key-of-conv", "name": "conv", "kind": "conv2d", "arguments": [{"name": "x", "shape": [1, 64, 56, 56], "dtype": "float32"}, {"name": "y", "shape": [1, 64, 56, 56], "dtype": "float32"}], "outputs": 1, "flop": 231000000.0}, "target": {"dialect": "fake", "config": {"kind": "cpu", "attrs": ["a", 1]}, "threads": 2}, "weight": 1, "tunable": true}]');
CREATE TABLE jobs (
	job_id VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	identity VARCHAR NOT NULL, 
	request JSON NOT NULL, 
	document JSON NOT NULL, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	owner JSON, 
	heartbeat_at DOUBLE, 
	CONSTRAINT pk_jobs PRIMARY KEY (job_id)
);
INSERT INTO "jobs" VALUES('e96047373d8c','stopped','91fdde15f49575fb','{"model": "resnet18.onnx", "budget": "10min"}','{"spend": {"wall_s": 0.0, "core_s": 0.0, "device_s": 0.0, "trials": 0, "stage_s": {}, "joules": null, "modelled": false, "money": null, "currency": "", "cores": 0}, "tasks": [], "message": "", "remaining": {}, "outlook": []}',1.79564869327519583699e+09,1795648693.2993,NULL,NULL);
CREATE TABLE ledger (
	id INTEGER NOT NULL, 
	job_id VARCHAR NOT NULL, 
	task_key VARCHAR NOT NULL, 
	stage VARCHAR NOT NULL, 
	outcome VARCHAR NOT NULL, 
	wall_s DOUBLE NOT NULL, 
	core_s DOUBLE NOT NULL, 
	device_s DOUBLE NOT NULL, 
	joules DOUBLE, 
	modelled BOOLEAN NOT NULL, 
	count INTEGER NOT NULL, money DOUBLE, currency VARCHAR DEFAULT '' NOT NULL, helped BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_ledger PRIMARY KEY (id), 
	CONSTRAINT fk_ledger_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id)
);
INSERT INTO "ledger" VALUES(1,'e96047373d8c','91d0ee74c6352ca5','measure','ok',1.5,2.5,0.5,NULL,0,1,NULL,'',0);
INSERT INTO "ledger" VALUES(2,'e96047373d8c','','learn','',1.0,1.0,0.0,5.0,1,1,0.25,'USD',1);
CREATE TABLE networks (
	digest VARCHAR NOT NULL, 
	document JSON NOT NULL, 
	CONSTRAINT pk_networks PRIMARY KEY (digest)
);
INSERT INTO "networks" VALUES('net-1','{"name": "resnet", "source": "resnet.onnx", "digest": "net-1", "path": "prepared.onnx", "inputs": [{"name": "x", "shape": [1, 3, 224, 224], "dtype": "float32"}], "outputs": [{"name": "x", "shape": [1, 3, 224, 224], "dtype": "float32"}], "parameters": 11689512}');
CREATE TABLE records (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	digest VARCHAR NOT NULL, 
	task_key VARCHAR NOT NULL, 
	candidate_key VARCHAR NOT NULL, 
	origin VARCHAR NOT NULL, 
	mode VARCHAR NOT NULL, 
	outcome VARCHAR NOT NULL, 
	latency_s DOUBLE, 
	deliverable BOOLEAN NOT NULL, 
	rejected BOOLEAN NOT NULL, 
	dialect VARCHAR NOT NULL, 
	compiler VARCHAR NOT NULL, 
	device VARCHAR NOT NULL, 
	settings VARCHAR NOT NULL, 
	job_id VARCHAR NOT NULL, 
	created_at DOUBLE NOT NULL, 
	body BLOB NOT NULL, 
	document JSON NOT NULL, 
	CONSTRAINT fk_records_task_key FOREIGN KEY(task_key) REFERENCES tasks ("key")
);
INSERT INTO "records" VALUES(1,'fe7e9fa52e2110e2','91d0ee74c6352ca5','fast','search','race','ok',0.001,1,0,'fake','fake-1','device-a','settings-a','',1.7956486932696156502e+09,X'789C4BCA4FA954C84F53484B2C2E01001CB40472','{"candidate": {"key": "fast", "task_key": "91d0ee74c6352ca5", "origin": "search", "score": null}, "measurement": {"outcome": "ok", "samples_s": [0.001, 0.001, 0.001], "mode": "race", "detail": "", "context": {}, "verification": {"method": "reference", "inputs": 3, "max_error": 0.25, "passed": true, "detail": ""}, "build_s": 0.1, "measure_s": 0.02}, "provenance": {"dialect": "fake", "compiler": "fake-1", "device": "device-a", "settings": "settings-a"}, "job_id": ""}');
INSERT INTO "records" VALUES(2,'49d08c0eb5d20c73','91d0ee74c6352ca5','fast','search','final','ok',0.00125,1,0,'fake','fake-1','device-a','settings-a','',1.79564869327338385586e+09,X'789C4BCA4FA954C84F53484B2C2E01001CB40472','{"candidate": {"key": "fast", "task_key": "91d0ee74c6352ca5", "origin": "search", "score": null}, "measurement": {"outcome": "ok", "samples_s": [0.00125, 0.00125, 0.00125], "mode": "final", "detail": "", "context": {}, "verification": {"method": "reference", "inputs": 3, "max_error": 0.25, "passed": true, "detail": ""}, "build_s": 0.1, "measure_s": 0.02}, "provenance": {"dialect": "fake", "compiler": "fake-1", "device": "device-a", "settings": "settings-a"}, "job_id": ""}');
INSERT INTO "records" VALUES(3,'4cbf385f09b70f5d','91d0ee74c6352ca5','hung','search','race','timeout',NULL,0,0,'fake','fake-1','device-a','settings-a','',1.79564869327438163758e+09,X'789C4BCA4FA954C84F53C828CD4B07001CE10476','{"candidate": {"key": "hung", "task_key": "91d0ee74c6352ca5", "origin": "search", "score": null}, "measurement": {"outcome": "timeout", "samples_s": [], "mode": "race", "detail": "", "context": {}, "verification": null, "build_s": 0.1, "measure_s": 0.02}, "provenance": {"dialect": "fake", "compiler": "fake-1", "device": "device-a", "settings": "settings-a"}, "job_id": ""}');
CREATE TABLE targets (
	"key" VARCHAR NOT NULL, 
	document JSON NOT NULL, 
	CONSTRAINT pk_targets PRIMARY KEY ("key")
);
INSERT INTO "targets" VALUES('f6a8fa4523065fe1','{"dialect": "fake", "config": {"kind": "cpu", "attrs": ["a", 1]}, "threads": 2}');
CREATE TABLE tasks (
	"key" VARCHAR NOT NULL, 
	workload_key VARCHAR NOT NULL, 
	target_key VARCHAR NOT NULL, 
	tunable BOOLEAN NOT NULL, 
	CONSTRAINT pk_tasks PRIMARY KEY ("key"), 
	CONSTRAINT fk_tasks_workload_key FOREIGN KEY(workload_key) REFERENCES workloads ("key"), 
	CONSTRAINT fk_tasks_target_key FOREIGN KEY(target_key) REFERENCES targets ("key")
);
INSERT INTO "tasks" VALUES('91d0ee74c6352ca5','key-of-conv','f6a8fa4523065fe1',1);
CREATE TABLE tunery_schema (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT tunery_schema_pkc PRIMARY KEY (version_num)
);
INSERT INTO "tunery_schema" VALUES('0005');
CREATE TABLE workloads (
	"key" VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	program BLOB NOT NULL, 
	document JSON NOT NULL, 
	CONSTRAINT pk_workloads PRIMARY KEY ("key")
);
INSERT INTO "workloads" VALUES('key-of-conv','conv','conv2d',X'789C2B28CA4F2F4ACC55C84F5348CECF2B532818E593C407000EF275BD','{"key": "key-of-conv", "name": "conv", "kind": "conv2d", "arguments": [{"name": "x", "shape": [1, 64, 56, 56], "dtype": "float32"}, {"name": "y", "shape": [1, 64, 56, 56], "dtype": "float32"}], "outputs": 1, "flop": 231000000.0}');
CREATE INDEX ix_tasks_workload_key ON tasks (workload_key);
CREATE INDEX ix_records_digest ON records (digest);
CREATE INDEX ix_records_job_id ON records (job_id);
CREATE INDEX ix_records_key ON records (task_key, dialect, compiler, device, settings);
CREATE INDEX ix_jobs_identity ON jobs (identity);
CREATE INDEX ix_ledger_job_id ON ledger (job_id);
CREATE INDEX ix_events_job_id_id ON events (job_id, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('records',3);
COMMIT;
