; 5eaa2e260cca324e5bd7da7c3d43c45fe4de1260847631703c66290342b06d9f of support.c, by tools/make_support.py
%struct.group = type { ptr, i32 }
%struct.timespec = type { i64, i64 }
%struct.worker = type { i64, i32, i32, %union.sem_t, i64, [72 x i8] }
%union.sem_t = type { i64, [24 x i8] }
%struct.cpu_set_t = type { [16 x i64] }
%struct.__sigset_t = type { [16 x i64] }
@__TVMBackendParallelLaunch = hidden local_unnamed_addr global ptr @launch, align 8
@hinted_extent = internal thread_local unnamed_addr global i64 0, align 8
@hinted_ns = internal thread_local unnamed_addr global i64 0, align 8
@most = internal unnamed_addr global i32 1, align 4
@shared = internal global ptr null, align 8
@__TVMFFIErrorSetRaisedFromCStr = weak local_unnamed_addr global ptr null, align 8
@.str = private unnamed_addr constant [13 x i8] c"RuntimeError\00", align 1
@.str.1 = private unnamed_addr constant [39 x i8] c"a task of a parallel region has failed\00", align 1
@__const.alone.group = private unnamed_addr constant %struct.group { ptr null, i32 1 }, align 8
@llvm.global_dtors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @end, ptr null }]
; Function Attrs: nounwind uwtable
define internal i32 @launch(ptr noundef %0, ptr noundef %1, i32 %2) #0 {
  %4 = alloca %struct.timespec, align 8
  %5 = alloca %struct.timespec, align 8
  %6 = alloca %struct.timespec, align 8
  %7 = alloca %struct.group, align 8
  %8 = alloca %struct.timespec, align 8
  %9 = alloca %struct.group, align 8
  %10 = load atomic i64, ptr @shared seq_cst, align 8
  %11 = inttoptr i64 %10 to ptr
  %12 = tail call align 8 ptr @llvm.threadlocal.address.p0(ptr align 8 @hinted_extent)
  %13 = load i64, ptr %12, align 8, !tbaa !4
  %14 = tail call align 8 ptr @llvm.threadlocal.address.p0(ptr align 8 @hinted_ns)
  %15 = load i64, ptr %14, align 8, !tbaa !4
  store i64 0, ptr %14, align 8, !tbaa !4
  store i64 0, ptr %12, align 8, !tbaa !4
  %16 = load atomic i32, ptr @most monotonic, align 4
  %17 = sext i32 %16 to i64
  %18 = shl nsw i64 %17, 3
  %19 = icmp eq i64 %15, 0
  br i1 %19, label %23, label %20
20:                                               ; preds = %3
  %21 = sdiv i64 %15, 2000
  %22 = tail call i64 @llvm.smin.i64(i64 %21, i64 %18)
  br label %23
23:                                               ; preds = %20, %3
  %24 = phi i64 [ %18, %3 ], [ %22, %20 ]
  %25 = tail call i64 @llvm.smax.i64(i64 %24, i64 %17)
  %26 = icmp eq i64 %13, 0
  br i1 %26, label %33, label %27
27:                                               ; preds = %23
  %28 = add i64 %13, -1
  %29 = add i64 %25, %28
  %30 = sdiv i64 %29, %25
  %31 = add i64 %30, %28
  %32 = sdiv i64 %31, %30
  br label %33
33:                                               ; preds = %23, %27
  %34 = phi i64 [ %32, %27 ], [ %25, %23 ]
  %35 = trunc i64 %34 to i32
  %36 = tail call i32 @llvm.smin.i32(i32 %16, i32 %35)
  %37 = icmp sgt i32 %36, 1
  %38 = icmp ne i64 %10, 0
  %39 = select i1 %37, i1 %38, i1 false
  br i1 %39, label %40, label %46
40:                                               ; preds = %33
  %41 = load atomic i32, ptr %11 seq_cst, align 128
  %42 = icmp eq i32 %41, 0
  br i1 %42, label %43, label %46
43:                                               ; preds = %40
  %44 = atomicrmw xchg ptr %11, i32 1 seq_cst, align 128
  %45 = icmp eq i32 %44, 0
  br i1 %45, label %48, label %46
46:                                               ; preds = %43, %40, %33
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %9) #9
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %9, ptr noundef nonnull align 8 dereferenceable(16) @__const.alone.group, i64 16, i1 false)
  %47 = call i32 %0(i32 noundef 0, ptr noundef nonnull %9, ptr noundef %1) #9
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %9) #9
  br label %197
48:                                               ; preds = %43
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %8) #9
  %49 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %8) #9
  %50 = load i64, ptr %8, align 8, !tbaa !8
  %51 = mul nsw i64 %50, 1000000000
  %52 = getelementptr inbounds i8, ptr %8, i64 8
  %53 = load i64, ptr %52, align 8, !tbaa !10
  %54 = add nsw i64 %51, %53
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %8) #9
  %55 = getelementptr inbounds i8, ptr %11, i64 32
  %56 = load i64, ptr %55, align 32, !tbaa !11
  %57 = icmp slt i64 %54, %56
  br i1 %57, label %58, label %60
58:                                               ; preds = %48
  store atomic i32 0, ptr %11 seq_cst, align 128
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %7) #9
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %7, ptr noundef nonnull align 8 dereferenceable(16) @__const.alone.group, i64 16, i1 false)
  %59 = call i32 %0(i32 noundef 0, ptr noundef nonnull %7, ptr noundef %1) #9
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %7) #9
  br label %197
60:                                               ; preds = %48
  %61 = getelementptr inbounds i8, ptr %11, i64 4
  %62 = load atomic i32, ptr %61 seq_cst, align 4
  %63 = icmp slt i32 %62, %36
  br i1 %63, label %64, label %65
64:                                               ; preds = %60
  call fastcc void @start(ptr noundef nonnull %11, i32 noundef %36)
  br label %65
65:                                               ; preds = %60, %64
  %66 = getelementptr inbounds i8, ptr %11, i64 128
  %67 = load atomic i32, ptr %66 seq_cst, align 128
  %68 = add i32 %67, 1
  %69 = getelementptr inbounds i8, ptr %11, i64 136
  store ptr %0, ptr %69, align 8, !tbaa !15
  %70 = getelementptr inbounds i8, ptr %11, i64 144
  store ptr %1, ptr %70, align 16, !tbaa !16
  %71 = getelementptr inbounds i8, ptr %11, i64 152
  store i32 %35, ptr %71, align 8, !tbaa !17
  %72 = getelementptr inbounds i8, ptr %11, i64 132
  store atomic i32 %36, ptr %72 monotonic, align 4
  %73 = getelementptr inbounds i8, ptr %11, i64 256
  store atomic i32 %35, ptr %73 monotonic, align 128
  %74 = getelementptr inbounds i8, ptr %11, i64 260
  store atomic i32 0, ptr %74 monotonic, align 4
  %75 = getelementptr inbounds i8, ptr %11, i64 384
  %76 = zext i32 %68 to i64
  %77 = shl nuw i64 %76, 32
  %78 = zext nneg i32 %36 to i64
  br label %84
79:                                               ; preds = %84
  store atomic i32 %68, ptr %66 seq_cst, align 128
  %80 = getelementptr inbounds i8, ptr %11, i64 16
  %81 = load i64, ptr %80, align 16, !tbaa !18
  %82 = sub nsw i64 %54, %81
  %83 = icmp slt i64 %82, 1000000
  br i1 %83, label %100, label %103
84:                                               ; preds = %65, %84
  %85 = phi i64 [ 0, %65 ], [ %90, %84 ]
  %86 = mul i64 %85, %34
  %87 = trunc i64 %86 to i32
  %88 = sdiv i32 %87, %36
  %89 = sext i32 %88 to i64
  %90 = add nuw nsw i64 %85, 1
  %91 = mul i64 %90, %34
  %92 = trunc i64 %91 to i32
  %93 = sdiv i32 %92, %36
  %94 = sext i32 %93 to i64
  %95 = getelementptr inbounds [256 x %struct.worker], ptr %75, i64 0, i64 %85
  %96 = shl nsw i64 %89, 16
  %97 = or i64 %96, %77
  %98 = or i64 %97, %94
  store atomic i64 %98, ptr %95 release, align 128
  %99 = icmp eq i64 %90, %78
  br i1 %99, label %79, label %84, !llvm.loop !19
100:                                              ; preds = %79
  %101 = getelementptr inbounds i8, ptr %11, i64 24
  %102 = load i64, ptr %101, align 8, !tbaa !21
  br label %103
103:                                              ; preds = %79, %100
  %104 = phi i64 [ %102, %100 ], [ 0, %79 ]
  %105 = select i1 %19, i64 40000, i64 %15
  %106 = add nsw i64 %104, %105
  %107 = getelementptr inbounds i8, ptr %11, i64 24
  store i64 %106, ptr %107, align 8, !tbaa !21
  %108 = icmp sgt i64 %106, 39999
  br i1 %108, label %109, label %110
109:                                              ; preds = %103
  call fastcc void @wake(ptr noundef nonnull %11, i32 noundef %36)
  store i64 0, ptr %107, align 8, !tbaa !21
  br label %110
110:                                              ; preds = %109, %103
  call fastcc void @work(ptr noundef nonnull %11, i32 noundef 0, i32 noundef %68)
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %6) #9
  %111 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %6) #9
  %112 = load i64, ptr %6, align 8, !tbaa !8
  %113 = mul nsw i64 %112, 1000000000
  %114 = getelementptr inbounds i8, ptr %6, i64 8
  %115 = load i64, ptr %114, align 8, !tbaa !10
  %116 = add nsw i64 %113, %115
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %6) #9
  store i64 %116, ptr %80, align 16, !tbaa !18
  %117 = load atomic i32, ptr %73 acquire, align 128
  %118 = icmp eq i32 %117, 0
  br i1 %118, label %124, label %119
119:                                              ; preds = %110
  %120 = getelementptr inbounds i8, ptr %5, i64 8
  %121 = getelementptr inbounds i8, ptr %11, i64 264
  %122 = getelementptr inbounds i8, ptr %11, i64 272
  %123 = getelementptr inbounds i8, ptr %4, i64 8
  br label %136
124:                                              ; preds = %162, %110
  %125 = phi i64 [ 0, %110 ], [ %163, %162 ]
  %126 = sub nsw i64 %116, %54
  %127 = shl nsw i64 %126, 1
  %128 = load atomic i32, ptr %72 seq_cst, align 4
  %129 = sext i32 %128 to i64
  %130 = mul nsw i64 %127, %129
  %131 = load i32, ptr %71, align 8, !tbaa !17
  %132 = sext i32 %131 to i64
  %133 = sdiv i64 %130, %132
  %134 = add nsw i64 %133, 100000
  %135 = icmp slt i64 %125, %134
  br i1 %135, label %188, label %167
136:                                              ; preds = %162, %119
  %137 = phi i64 [ 0, %119 ], [ %163, %162 ]
  %138 = phi i32 [ 0, %119 ], [ %164, %162 ]
  call void asm sideeffect "PAUSE", "~{memory}"() #9
  %139 = and i32 %138, 31
  %140 = icmp eq i32 %139, 0
  br i1 %140, label %141, label %162
141:                                              ; preds = %136
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %5) #9
  %142 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %5) #9
  %143 = load i64, ptr %5, align 8, !tbaa !8
  %144 = mul nsw i64 %143, 1000000000
  %145 = load i64, ptr %120, align 8, !tbaa !10
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %5) #9
  %146 = sub i64 %145, %116
  %147 = add i64 %146, %144
  %148 = icmp slt i64 %147, 50000
  br i1 %148, label %162, label %149
149:                                              ; preds = %141
  store atomic i32 1, ptr %121 seq_cst, align 8
  %150 = load atomic i32, ptr %73 seq_cst, align 128
  %151 = icmp eq i32 %150, 0
  br i1 %151, label %155, label %152
152:                                              ; preds = %149, %152
  %153 = call i32 @sem_wait(ptr noundef nonnull %122) #9
  %154 = icmp eq i32 %153, 0
  br i1 %154, label %155, label %152, !llvm.loop !23
155:                                              ; preds = %152, %149
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #9
  %156 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %4) #9
  %157 = load i64, ptr %4, align 8, !tbaa !8
  %158 = mul nsw i64 %157, 1000000000
  %159 = load i64, ptr %123, align 8, !tbaa !10
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #9
  %160 = sub i64 %159, %116
  %161 = add i64 %160, %158
  br label %162
162:                                              ; preds = %155, %141, %136
  %163 = phi i64 [ %137, %136 ], [ %137, %141 ], [ %161, %155 ]
  %164 = add nuw nsw i32 %138, 1
  %165 = load atomic i32, ptr %73 acquire, align 128
  %166 = icmp eq i32 %165, 0
  br i1 %166, label %124, label %136, !llvm.loop !24
167:                                              ; preds = %124
  %168 = add nsw i64 %125, %116
  %169 = load i64, ptr %55, align 32, !tbaa !11
  %170 = sub nsw i64 %168, %169
  %171 = getelementptr inbounds i8, ptr %11, i64 40
  %172 = load i64, ptr %171, align 8, !tbaa !25
  %173 = shl nsw i64 %172, 1
  %174 = add nsw i64 %172, 50000000
  %175 = icmp sgt i64 %170, %174
  br i1 %175, label %176, label %179
176:                                              ; preds = %167
  %177 = sdiv i64 %170, 16
  %178 = call i64 @llvm.smin.i64(i64 %173, i64 %177)
  br label %179
179:                                              ; preds = %176, %167
  %180 = phi i64 [ %173, %167 ], [ %178, %176 ]
  %181 = call i64 @llvm.smax.i64(i64 %180, i64 8000000)
  %182 = call i64 @llvm.umin.i64(i64 %181, i64 1000000000)
  %183 = shl nsw i64 %172, 3
  %184 = add nsw i64 %183, 200000000
  %185 = icmp sgt i64 %170, %184
  %186 = select i1 %185, i64 0, i64 %182
  store i64 %186, ptr %171, align 8, !tbaa !25
  %187 = add nsw i64 %186, %168
  store i64 %187, ptr %55, align 32, !tbaa !11
  br label %188
188:                                              ; preds = %124, %179
  %189 = load atomic i32, ptr %74 seq_cst, align 4
  store atomic i32 0, ptr %11 seq_cst, align 128
  %190 = icmp ne i32 %189, 0
  %191 = load ptr, ptr @__TVMFFIErrorSetRaisedFromCStr, align 8
  %192 = icmp ne ptr %191, null
  %193 = select i1 %190, i1 %192, i1 false
  br i1 %193, label %194, label %195
194:                                              ; preds = %188
  call void %191(ptr noundef nonnull @.str, ptr noundef nonnull @.str.1) #9
  br label %195
195:                                              ; preds = %194, %188
  %196 = sext i1 %190 to i32
  br label %197
197:                                              ; preds = %58, %195, %46
  %198 = phi i32 [ %47, %46 ], [ %59, %58 ], [ %196, %195 ]
  ret i32 %198
}
; Function Attrs: mustprogress nofree norecurse nosync nounwind willreturn memory(write, argmem: none, inaccessiblemem: none) uwtable
define hidden noundef i32 @tunery_region(i64 noundef %0, i64 noundef %1) local_unnamed_addr #1 {
  %3 = tail call align 8 ptr @llvm.threadlocal.address.p0(ptr align 8 @hinted_extent)
  store i64 %0, ptr %3, align 8, !tbaa !4
  %4 = tail call i64 @llvm.smax.i64(i64 %1, i64 1)
  %5 = tail call align 8 ptr @llvm.threadlocal.address.p0(ptr align 8 @hinted_ns)
  store i64 %4, ptr %5, align 8, !tbaa !4
  ret i32 0
}
; Function Attrs: mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare nonnull ptr @llvm.threadlocal.address.p0(ptr nonnull) #2
; Function Attrs: nounwind uwtable
define noundef i32 @__tvm_ffi_tunery_threads(ptr nocapture noundef readnone %0, ptr nocapture noundef readonly %1, i32 noundef %2, ptr nocapture noundef readnone %3) local_unnamed_addr #0 {
  %5 = getelementptr inbounds i8, ptr %1, i64 8
  %6 = load i64, ptr %5, align 8, !tbaa !26
  %7 = tail call i64 @llvm.smin.i64(i64 %6, i64 256)
  %8 = tail call i64 @llvm.smax.i64(i64 %7, i64 1)
  %9 = trunc nuw nsw i64 %8 to i32
  store atomic i32 %9, ptr @most seq_cst, align 4
  %10 = load atomic i64, ptr @shared seq_cst, align 8
  %11 = inttoptr i64 %10 to ptr
  %12 = icmp slt i64 %6, 2
  %13 = icmp ne i64 %10, 0
  %14 = select i1 %12, i1 %13, i1 false
  br i1 %14, label %15, label %46
15:                                               ; preds = %4
  %16 = atomicrmw xchg ptr %11, i32 1 seq_cst, align 128
  %17 = icmp eq i32 %16, 0
  br i1 %17, label %18, label %60
18:                                               ; preds = %15
  %19 = getelementptr inbounds i8, ptr %11, i64 8
  store atomic i32 1, ptr %19 seq_cst, align 8
  %20 = getelementptr inbounds i8, ptr %11, i64 128
  %21 = atomicrmw add ptr %20, i32 1 seq_cst, align 128
  %22 = getelementptr inbounds i8, ptr %11, i64 4
  %23 = load atomic i32, ptr %22 seq_cst, align 4
  %24 = icmp sgt i32 %23, 1
  br i1 %24, label %25, label %45
25:                                               ; preds = %18
  %26 = getelementptr inbounds i8, ptr %11, i64 384
  br label %27
27:                                               ; preds = %36, %25
  %28 = phi i64 [ 1, %25 ], [ %41, %36 ]
  %29 = getelementptr inbounds [256 x %struct.worker], ptr %26, i64 0, i64 %28
  %30 = getelementptr inbounds i8, ptr %29, i64 8
  %31 = atomicrmw xchg ptr %30, i32 0 seq_cst, align 8
  %32 = icmp eq i32 %31, 0
  br i1 %32, label %36, label %33
33:                                               ; preds = %27
  %34 = getelementptr inbounds i8, ptr %29, i64 16
  %35 = tail call i32 @sem_post(ptr noundef nonnull %34) #9
  br label %36
36:                                               ; preds = %33, %27
  %37 = getelementptr inbounds i8, ptr %29, i64 48
  %38 = load i64, ptr %37, align 16, !tbaa !28
  %39 = tail call i32 @pthread_join(i64 noundef %38, ptr noundef null) #9
  %40 = getelementptr inbounds i8, ptr %29, i64 12
  store i32 0, ptr %40, align 4, !tbaa !30
  %41 = add nuw nsw i64 %28, 1
  %42 = load atomic i32, ptr %22 seq_cst, align 4
  %43 = sext i32 %42 to i64
  %44 = icmp slt i64 %41, %43
  br i1 %44, label %27, label %45, !llvm.loop !31
45:                                               ; preds = %36, %18
  store atomic i32 0, ptr %22 seq_cst, align 4
  store atomic i32 0, ptr %19 seq_cst, align 8
  store atomic i32 0, ptr %11 seq_cst, align 128
  br label %46
46:                                               ; preds = %45, %4
  %47 = select i1 %12, i1 true, i1 %13
  br i1 %47, label %60, label %48
48:                                               ; preds = %46
  %49 = tail call ptr @mmap(ptr noundef null, i64 noundef 33152, i32 noundef 3, i32 noundef 34, i32 noundef -1, i64 noundef 0) #9
  %50 = icmp eq ptr %49, inttoptr (i64 -1 to ptr)
  br i1 %50, label %60, label %51
51:                                               ; preds = %48
  %52 = tail call i32 @madvise(ptr noundef %49, i64 noundef 33152, i32 noundef 18) #9
  %53 = icmp eq i32 %52, 0
  br i1 %53, label %54, label %58
54:                                               ; preds = %51
  %55 = ptrtoint ptr %49 to i64
  %56 = cmpxchg ptr @shared, i64 0, i64 %55 seq_cst seq_cst, align 8
  %57 = extractvalue { i64, i1 } %56, 1
  br i1 %57, label %60, label %58
58:                                               ; preds = %54, %51
  %59 = tail call i32 @munmap(ptr noundef %49, i64 noundef 33152) #9
  br label %60
60:                                               ; preds = %15, %48, %58, %54, %46
  ret i32 0
}
; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #3
; Function Attrs: nounwind
declare ptr @mmap(ptr noundef, i64 noundef, i32 noundef, i32 noundef, i32 noundef, i64 noundef) local_unnamed_addr #4
; Function Attrs: nounwind
declare i32 @madvise(ptr noundef, i64 noundef, i32 noundef) local_unnamed_addr #4
; Function Attrs: nounwind
declare i32 @munmap(ptr noundef, i64 noundef) local_unnamed_addr #4
; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #3
; Function Attrs: nounwind uwtable
define internal void @end() #0 {
  %1 = load atomic i64, ptr @shared seq_cst, align 8
  %2 = inttoptr i64 %1 to ptr
  %3 = icmp eq i64 %1, 0
  br i1 %3, label %36, label %4
4:                                                ; preds = %0
  %5 = getelementptr inbounds i8, ptr %2, i64 8
  store atomic i32 1, ptr %5 seq_cst, align 8
  %6 = getelementptr inbounds i8, ptr %2, i64 128
  %7 = atomicrmw add ptr %6, i32 1 seq_cst, align 128
  %8 = getelementptr inbounds i8, ptr %2, i64 4
  %9 = load atomic i32, ptr %8 seq_cst, align 4
  %10 = icmp sgt i32 %9, 1
  br i1 %10, label %11, label %31
11:                                               ; preds = %4
  %12 = getelementptr inbounds i8, ptr %2, i64 384
  br label %13
13:                                               ; preds = %22, %11
  %14 = phi i64 [ 1, %11 ], [ %27, %22 ]
  %15 = getelementptr inbounds [256 x %struct.worker], ptr %12, i64 0, i64 %14
  %16 = getelementptr inbounds i8, ptr %15, i64 8
  %17 = atomicrmw xchg ptr %16, i32 0 seq_cst, align 8
  %18 = icmp eq i32 %17, 0
  br i1 %18, label %22, label %19
19:                                               ; preds = %13
  %20 = getelementptr inbounds i8, ptr %15, i64 16
  %21 = tail call i32 @sem_post(ptr noundef nonnull %20) #9
  br label %22
22:                                               ; preds = %19, %13
  %23 = getelementptr inbounds i8, ptr %15, i64 48
  %24 = load i64, ptr %23, align 16, !tbaa !28
  %25 = tail call i32 @pthread_join(i64 noundef %24, ptr noundef null) #9
  %26 = getelementptr inbounds i8, ptr %15, i64 12
  store i32 0, ptr %26, align 4, !tbaa !30
  %27 = add nuw nsw i64 %14, 1
  %28 = load atomic i32, ptr %8 seq_cst, align 4
  %29 = sext i32 %28 to i64
  %30 = icmp slt i64 %27, %29
  br i1 %30, label %13, label %31, !llvm.loop !31
31:                                               ; preds = %22, %4
  store atomic i32 0, ptr %8 seq_cst, align 4
  store atomic i32 0, ptr %5 seq_cst, align 8
  %32 = atomicrmw xchg ptr %2, i32 1 seq_cst, align 128
  %33 = icmp eq i32 %32, 0
  br i1 %33, label %34, label %36
34:                                               ; preds = %31
  %35 = tail call i32 @munmap(ptr noundef nonnull %2, i64 noundef 33152) #9
  br label %36
36:                                               ; preds = %31, %34, %0
  ret void
}
; Function Attrs: nofree norecurse nosync nounwind memory(argmem: readwrite) uwtable
define hidden noundef i32 @tunery_transpose(ptr noalias nocapture noundef writeonly %0, i64 noundef %1, ptr noalias nocapture noundef readonly %2, i64 noundef %3, i64 noundef %4, i64 noundef %5) local_unnamed_addr #5 {
  %7 = icmp slt i64 %5, 8
  br i1 %7, label %25, label %8
8:                                                ; preds = %6
  %9 = icmp slt i64 %4, 8
  %10 = shl nsw i64 %3, 3
  %11 = mul i64 %3, 12
  %12 = shl nsw i64 %3, 4
  %13 = mul i64 %3, 20
  %14 = mul i64 %3, 24
  %15 = mul i64 %3, 28
  %16 = shl nsw i64 %1, 4
  %17 = mul i64 %1, 20
  %18 = shl nsw i64 %1, 3
  %19 = mul i64 %1, 24
  %20 = mul i64 %1, 12
  %21 = mul i64 %1, 28
  %22 = and i64 %4, 1
  %23 = icmp eq i64 %22, 0
  %24 = add i64 %4, -1
  br label %34
25:                                               ; preds = %154, %6
  %26 = phi i64 [ 0, %6 ], [ %47, %154 ]
  %27 = icmp slt i64 %26, %5
  br i1 %27, label %28, label %203
28:                                               ; preds = %25
  %29 = icmp sgt i64 %4, 0
  %30 = and i64 %4, 3
  %31 = icmp ult i64 %4, 4
  %32 = and i64 %4, 9223372036854775804
  %33 = icmp eq i64 %30, 0
  br label %157
34:                                               ; preds = %8, %154
  %35 = phi i64 [ 0, %8 ], [ %47, %154 ]
  %36 = add nuw nsw i64 %35, 16
  %37 = icmp sgt i64 %36, %5
  %38 = select i1 %37, i64 8, i64 16
  br i1 %9, label %44, label %39
39:                                               ; preds = %34
  %40 = add nuw nsw i64 %38, %35
  br label %66
41:                                               ; preds = %72
  %42 = add nuw nsw i64 %67, 8
  %43 = icmp sgt i64 %42, %4
  br i1 %43, label %44, label %66, !llvm.loop !32
44:                                               ; preds = %41, %34
  %45 = phi i64 [ 0, %34 ], [ %67, %41 ]
  %46 = icmp slt i64 %45, %4
  %47 = add nuw nsw i64 %38, %35
  br i1 %46, label %48, label %154
48:                                               ; preds = %44
  br i1 %23, label %63, label %49
49:                                               ; preds = %48
  %50 = mul nsw i64 %45, %3
  %51 = getelementptr float, ptr %2, i64 %50
  %52 = getelementptr float, ptr %0, i64 %45
  br label %53
53:                                               ; preds = %53, %49
  %54 = phi i64 [ %35, %49 ], [ %59, %53 ]
  %55 = getelementptr float, ptr %51, i64 %54
  %56 = load float, ptr %55, align 4, !tbaa !33
  %57 = mul nsw i64 %54, %1
  %58 = getelementptr float, ptr %52, i64 %57
  store float %56, ptr %58, align 4, !tbaa !33
  %59 = add nuw nsw i64 %54, 1
  %60 = icmp ult i64 %59, %47
  br i1 %60, label %53, label %61, !llvm.loop !35
61:                                               ; preds = %53
  %62 = or disjoint i64 %45, 1
  br label %63
63:                                               ; preds = %61, %48
  %64 = phi i64 [ %45, %48 ], [ %62, %61 ]
  %65 = icmp eq i64 %45, %24
  br i1 %65, label %154, label %125
66:                                               ; preds = %39, %41
  %67 = phi i64 [ 8, %39 ], [ %42, %41 ]
  %68 = phi i64 [ 0, %39 ], [ %67, %41 ]
  %69 = getelementptr float, ptr %0, i64 %68
  %70 = mul nsw i64 %68, %3
  %71 = getelementptr inbounds float, ptr %2, i64 %70
  br label %72
72:                                               ; preds = %66, %72
  %73 = phi i64 [ %35, %66 ], [ %123, %72 ]
  %74 = mul nsw i64 %73, %1
  %75 = getelementptr float, ptr %69, i64 %74
  %76 = getelementptr inbounds float, ptr %71, i64 %73
  %77 = load <8 x float>, ptr %76, align 4, !tbaa !36
  %78 = getelementptr inbounds float, ptr %76, i64 %3
  %79 = load <8 x float>, ptr %78, align 4, !tbaa !36
  %80 = getelementptr inbounds i8, ptr %76, i64 %10
  %81 = load <8 x float>, ptr %80, align 4, !tbaa !36
  %82 = getelementptr inbounds i8, ptr %76, i64 %11
  %83 = load <8 x float>, ptr %82, align 4, !tbaa !36
  %84 = getelementptr inbounds i8, ptr %76, i64 %12
  %85 = load <8 x float>, ptr %84, align 4, !tbaa !36
  %86 = getelementptr inbounds i8, ptr %76, i64 %13
  %87 = load <8 x float>, ptr %86, align 4, !tbaa !36
  %88 = getelementptr inbounds i8, ptr %76, i64 %14
  %89 = load <8 x float>, ptr %88, align 4, !tbaa !36
  %90 = getelementptr inbounds i8, ptr %76, i64 %15
  %91 = load <8 x float>, ptr %90, align 4, !tbaa !36
  %92 = shufflevector <8 x float> %77, <8 x float> %79, <8 x i32> <i32 0, i32 8, i32 1, i32 9, i32 4, i32 12, i32 5, i32 13>
  %93 = shufflevector <8 x float> %77, <8 x float> %79, <8 x i32> <i32 2, i32 10, i32 3, i32 11, i32 6, i32 14, i32 7, i32 15>
  %94 = shufflevector <8 x float> %81, <8 x float> %83, <8 x i32> <i32 0, i32 8, i32 1, i32 9, i32 4, i32 12, i32 5, i32 13>
  %95 = shufflevector <8 x float> %81, <8 x float> %83, <8 x i32> <i32 2, i32 10, i32 3, i32 11, i32 6, i32 14, i32 7, i32 15>
  %96 = shufflevector <8 x float> %85, <8 x float> %87, <8 x i32> <i32 0, i32 8, i32 1, i32 9, i32 4, i32 12, i32 5, i32 13>
  %97 = shufflevector <8 x float> %85, <8 x float> %87, <8 x i32> <i32 2, i32 10, i32 3, i32 11, i32 6, i32 14, i32 7, i32 15>
  %98 = shufflevector <8 x float> %89, <8 x float> %91, <8 x i32> <i32 0, i32 8, i32 1, i32 9, i32 4, i32 12, i32 5, i32 13>
  %99 = shufflevector <8 x float> %89, <8 x float> %91, <8 x i32> <i32 2, i32 10, i32 3, i32 11, i32 6, i32 14, i32 7, i32 15>
  %100 = shufflevector <8 x float> %92, <8 x float> %94, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %101 = shufflevector <8 x float> %92, <8 x float> %94, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %102 = shufflevector <8 x float> %96, <8 x float> %98, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %103 = shufflevector <8 x float> %96, <8 x float> %98, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %104 = shufflevector <8 x float> %93, <8 x float> %95, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %105 = shufflevector <8 x float> %93, <8 x float> %95, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %106 = shufflevector <8 x float> %97, <8 x float> %99, <8 x i32> <i32 0, i32 1, i32 8, i32 9, i32 4, i32 5, i32 12, i32 13>
  %107 = shufflevector <8 x float> %97, <8 x float> %99, <8 x i32> <i32 2, i32 3, i32 10, i32 11, i32 6, i32 7, i32 14, i32 15>
  %108 = shufflevector <8 x float> %100, <8 x float> %102, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  store <8 x float> %108, ptr %75, align 4, !tbaa !36
  %109 = shufflevector <8 x float> %100, <8 x float> %102, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %110 = getelementptr inbounds i8, ptr %75, i64 %16
  store <8 x float> %109, ptr %110, align 4, !tbaa !36
  %111 = shufflevector <8 x float> %101, <8 x float> %103, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %112 = getelementptr inbounds float, ptr %75, i64 %1
  store <8 x float> %111, ptr %112, align 4, !tbaa !36
  %113 = shufflevector <8 x float> %101, <8 x float> %103, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %114 = getelementptr inbounds i8, ptr %75, i64 %17
  store <8 x float> %113, ptr %114, align 4, !tbaa !36
  %115 = shufflevector <8 x float> %104, <8 x float> %106, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %116 = getelementptr inbounds i8, ptr %75, i64 %18
  store <8 x float> %115, ptr %116, align 4, !tbaa !36
  %117 = shufflevector <8 x float> %104, <8 x float> %106, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %118 = getelementptr inbounds i8, ptr %75, i64 %19
  store <8 x float> %117, ptr %118, align 4, !tbaa !36
  %119 = shufflevector <8 x float> %105, <8 x float> %107, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 8, i32 9, i32 10, i32 11>
  %120 = getelementptr inbounds i8, ptr %75, i64 %20
  store <8 x float> %119, ptr %120, align 4, !tbaa !36
  %121 = shufflevector <8 x float> %105, <8 x float> %107, <8 x i32> <i32 4, i32 5, i32 6, i32 7, i32 12, i32 13, i32 14, i32 15>
  %122 = getelementptr inbounds i8, ptr %75, i64 %21
  store <8 x float> %121, ptr %122, align 4, !tbaa !36
  %123 = add nuw nsw i64 %73, 8
  %124 = icmp ult i64 %123, %40
  br i1 %124, label %72, label %41, !llvm.loop !37
125:                                              ; preds = %63, %143
  %126 = phi i64 [ %144, %143 ], [ %64, %63 ]
  %127 = mul nsw i64 %126, %3
  %128 = getelementptr float, ptr %2, i64 %127
  %129 = getelementptr float, ptr %0, i64 %126
  br label %146
130:                                              ; preds = %146
  %131 = add nuw nsw i64 %126, 1
  %132 = mul nsw i64 %131, %3
  %133 = getelementptr float, ptr %2, i64 %132
  %134 = getelementptr float, ptr %0, i64 %131
  br label %135
135:                                              ; preds = %135, %130
  %136 = phi i64 [ %35, %130 ], [ %141, %135 ]
  %137 = getelementptr float, ptr %133, i64 %136
  %138 = load float, ptr %137, align 4, !tbaa !33
  %139 = mul nsw i64 %136, %1
  %140 = getelementptr float, ptr %134, i64 %139
  store float %138, ptr %140, align 4, !tbaa !33
  %141 = add nuw nsw i64 %136, 1
  %142 = icmp ult i64 %141, %47
  br i1 %142, label %135, label %143, !llvm.loop !35
143:                                              ; preds = %135
  %144 = add nuw nsw i64 %126, 2
  %145 = icmp eq i64 %144, %4
  br i1 %145, label %154, label %125, !llvm.loop !38
146:                                              ; preds = %125, %146
  %147 = phi i64 [ %35, %125 ], [ %152, %146 ]
  %148 = getelementptr float, ptr %128, i64 %147
  %149 = load float, ptr %148, align 4, !tbaa !33
  %150 = mul nsw i64 %147, %1
  %151 = getelementptr float, ptr %129, i64 %150
  store float %149, ptr %151, align 4, !tbaa !33
  %152 = add nuw nsw i64 %147, 1
  %153 = icmp ult i64 %152, %47
  br i1 %153, label %146, label %130, !llvm.loop !35
154:                                              ; preds = %63, %143, %44
  %155 = add nuw nsw i64 %47, 8
  %156 = icmp sgt i64 %155, %5
  br i1 %156, label %25, label %34, !llvm.loop !39
157:                                              ; preds = %28, %175
  %158 = phi i64 [ %26, %28 ], [ %176, %175 ]
  %159 = getelementptr float, ptr %2, i64 %158
  br i1 %29, label %160, label %175
160:                                              ; preds = %157
  %161 = mul nsw i64 %158, %1
  %162 = getelementptr float, ptr %0, i64 %161
  br i1 %31, label %163, label %178
163:                                              ; preds = %178, %160
  %164 = phi i64 [ 0, %160 ], [ %200, %178 ]
  br i1 %33, label %175, label %165
165:                                              ; preds = %163, %165
  %166 = phi i64 [ %172, %165 ], [ %164, %163 ]
  %167 = phi i64 [ %173, %165 ], [ 0, %163 ]
  %168 = mul nsw i64 %166, %3
  %169 = getelementptr float, ptr %159, i64 %168
  %170 = load float, ptr %169, align 4, !tbaa !33
  %171 = getelementptr float, ptr %162, i64 %166
  store float %170, ptr %171, align 4, !tbaa !33
  %172 = add nuw nsw i64 %166, 1
  %173 = add i64 %167, 1
  %174 = icmp eq i64 %173, %30
  br i1 %174, label %175, label %165, !llvm.loop !40
175:                                              ; preds = %163, %165, %157
  %176 = add nuw nsw i64 %158, 1
  %177 = icmp eq i64 %176, %5
  br i1 %177, label %203, label %157, !llvm.loop !42
178:                                              ; preds = %160, %178
  %179 = phi i64 [ %200, %178 ], [ 0, %160 ]
  %180 = phi i64 [ %201, %178 ], [ 0, %160 ]
  %181 = mul nsw i64 %179, %3
  %182 = getelementptr float, ptr %159, i64 %181
  %183 = load float, ptr %182, align 4, !tbaa !33
  %184 = getelementptr float, ptr %162, i64 %179
  store float %183, ptr %184, align 4, !tbaa !33
  %185 = or disjoint i64 %179, 1
  %186 = mul nsw i64 %185, %3
  %187 = getelementptr float, ptr %159, i64 %186
  %188 = load float, ptr %187, align 4, !tbaa !33
  %189 = getelementptr float, ptr %162, i64 %185
  store float %188, ptr %189, align 4, !tbaa !33
  %190 = or disjoint i64 %179, 2
  %191 = mul nsw i64 %190, %3
  %192 = getelementptr float, ptr %159, i64 %191
  %193 = load float, ptr %192, align 4, !tbaa !33
  %194 = getelementptr float, ptr %162, i64 %190
  store float %193, ptr %194, align 4, !tbaa !33
  %195 = or disjoint i64 %179, 3
  %196 = mul nsw i64 %195, %3
  %197 = getelementptr float, ptr %159, i64 %196
  %198 = load float, ptr %197, align 4, !tbaa !33
  %199 = getelementptr float, ptr %162, i64 %195
  store float %198, ptr %199, align 4, !tbaa !33
  %200 = add nuw nsw i64 %179, 4
  %201 = add i64 %180, 4
  %202 = icmp eq i64 %201, %32
  br i1 %202, label %163, label %178, !llvm.loop !43
203:                                              ; preds = %175, %25
  ret i32 0
}
; Function Attrs: nounwind uwtable
define internal fastcc void @start(ptr noundef %0, i32 noundef %1) unnamed_addr #0 {
  %3 = alloca %struct.cpu_set_t, align 8
  %4 = alloca %struct.__sigset_t, align 8
  %5 = alloca %struct.__sigset_t, align 8
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %4) #9
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %5) #9
  %6 = call i32 @sigfillset(ptr noundef nonnull %4) #9
  %7 = call i32 @pthread_sigmask(i32 noundef 2, ptr noundef nonnull %4, ptr noundef nonnull %5) #9
  %8 = getelementptr inbounds i8, ptr %0, i64 4
  %9 = load atomic i32, ptr %8 seq_cst, align 4
  %10 = icmp eq i32 %9, 0
  br i1 %10, label %11, label %14
11:                                               ; preds = %2
  %12 = getelementptr inbounds i8, ptr %0, i64 272
  %13 = call i32 @sem_init(ptr noundef nonnull %12, i32 noundef 0, i32 noundef 0) #9
  br label %14
14:                                               ; preds = %11, %2
  %15 = phi i32 [ %9, %2 ], [ 1, %11 ]
  %16 = getelementptr inbounds i8, ptr %0, i64 384
  %17 = icmp slt i32 %15, %1
  br i1 %17, label %18, label %59
18:                                               ; preds = %14
  %19 = sext i32 %15 to i64
  br label %20
20:                                               ; preds = %18, %53
  %21 = phi i64 [ %19, %18 ], [ %54, %53 ]
  %22 = getelementptr inbounds [256 x %struct.worker], ptr %16, i64 0, i64 %21
  %23 = getelementptr inbounds i8, ptr %22, i64 16
  %24 = call i32 @sem_init(ptr noundef nonnull %23, i32 noundef 0, i32 noundef 0) #9
  %25 = getelementptr inbounds i8, ptr %22, i64 48
  %26 = call i32 @pthread_create(ptr noundef nonnull %25, ptr noundef null, ptr noundef nonnull @serve, ptr noundef nonnull %22) #9
  %27 = icmp eq i32 %26, 0
  br i1 %27, label %28, label %57
28:                                               ; preds = %20
  %29 = call i32 @sched_getcpu() #9
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %3) #9
  %30 = icmp slt i32 %29, 0
  br i1 %30, label %53, label %31
31:                                               ; preds = %28
  %32 = getelementptr inbounds i8, ptr %22, i64 12
  %33 = load i32, ptr %32, align 4, !tbaa !30
  %34 = add nuw nsw i32 %29, 1
  %35 = icmp eq i32 %33, %34
  br i1 %35, label %53, label %36
36:                                               ; preds = %31
  %37 = call i32 @sched_getaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %3) #9
  %38 = icmp eq i32 %37, 0
  br i1 %38, label %39, label %53
39:                                               ; preds = %36
  %40 = icmp ult i32 %29, 1024
  br i1 %40, label %41, label %50
41:                                               ; preds = %39
  %42 = zext nneg i32 %29 to i64
  %43 = and i64 %42, 63
  %44 = shl nuw i64 1, %43
  %45 = xor i64 %44, -1
  %46 = lshr i64 %42, 6
  %47 = getelementptr inbounds i64, ptr %3, i64 %46
  %48 = load i64, ptr %47, align 8, !tbaa !4
  %49 = and i64 %48, %45
  store i64 %49, ptr %47, align 8, !tbaa !4
  br label %50
50:                                               ; preds = %41, %39
  %51 = load i64, ptr %25, align 16, !tbaa !28
  %52 = call i32 @pthread_setaffinity_np(i64 noundef %51, i64 noundef 128, ptr noundef nonnull %3) #9
  store i32 %34, ptr %32, align 4, !tbaa !30
  br label %53
53:                                               ; preds = %50, %36, %31, %28
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %3) #9
  %54 = add nsw i64 %21, 1
  %55 = trunc i64 %54 to i32
  %56 = icmp eq i32 %55, %1
  br i1 %56, label %59, label %20, !llvm.loop !44
57:                                               ; preds = %20
  %58 = trunc nsw i64 %21 to i32
  br label %59
59:                                               ; preds = %53, %57, %14
  %60 = phi i32 [ %15, %14 ], [ %58, %57 ], [ %1, %53 ]
  store atomic i32 %60, ptr %8 seq_cst, align 4
  %61 = call i32 @pthread_sigmask(i32 noundef 2, ptr noundef nonnull %5, ptr noundef null) #9
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %5) #9
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %4) #9
  ret void
}
; Function Attrs: nounwind uwtable
define internal fastcc void @wake(ptr noundef %0, i32 noundef %1) unnamed_addr #0 {
  %3 = alloca %struct.cpu_set_t, align 8
  %4 = tail call i32 @sched_getcpu() #9
  %5 = icmp sgt i32 %1, 1
  br i1 %5, label %6, label %18
6:                                                ; preds = %2
  %7 = getelementptr inbounds i8, ptr %0, i64 384
  %8 = icmp slt i32 %4, 0
  %9 = add nuw nsw i32 %4, 1
  %10 = icmp ult i32 %4, 1024
  %11 = zext nneg i32 %4 to i64
  %12 = and i64 %11, 63
  %13 = shl nuw i64 1, %12
  %14 = xor i64 %13, -1
  %15 = lshr i64 %11, 6
  %16 = getelementptr inbounds i64, ptr %3, i64 %15
  %17 = zext nneg i32 %1 to i64
  br label %19
18:                                               ; preds = %47, %2
  ret void
19:                                               ; preds = %6, %47
  %20 = phi i64 [ 1, %6 ], [ %48, %47 ]
  %21 = getelementptr inbounds [256 x %struct.worker], ptr %7, i64 0, i64 %20
  %22 = getelementptr inbounds i8, ptr %21, i64 8
  %23 = load atomic i32, ptr %22 seq_cst, align 8
  %24 = icmp eq i32 %23, 0
  br i1 %24, label %47, label %25
25:                                               ; preds = %19
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %3) #9
  br i1 %8, label %41, label %26
26:                                               ; preds = %25
  %27 = getelementptr inbounds i8, ptr %21, i64 12
  %28 = load i32, ptr %27, align 4, !tbaa !30
  %29 = icmp eq i32 %28, %9
  br i1 %29, label %41, label %30
30:                                               ; preds = %26
  %31 = call i32 @sched_getaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %3) #9
  %32 = icmp eq i32 %31, 0
  br i1 %32, label %33, label %41
33:                                               ; preds = %30
  br i1 %10, label %34, label %37
34:                                               ; preds = %33
  %35 = load i64, ptr %16, align 8, !tbaa !4
  %36 = and i64 %35, %14
  store i64 %36, ptr %16, align 8, !tbaa !4
  br label %37
37:                                               ; preds = %34, %33
  %38 = getelementptr inbounds i8, ptr %21, i64 48
  %39 = load i64, ptr %38, align 16, !tbaa !28
  %40 = call i32 @pthread_setaffinity_np(i64 noundef %39, i64 noundef 128, ptr noundef nonnull %3) #9
  store i32 %9, ptr %27, align 4, !tbaa !30
  br label %41
41:                                               ; preds = %25, %26, %30, %37
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %3) #9
  %42 = atomicrmw xchg ptr %22, i32 0 seq_cst, align 8
  %43 = icmp eq i32 %42, 0
  br i1 %43, label %47, label %44
44:                                               ; preds = %41
  %45 = getelementptr inbounds i8, ptr %21, i64 16
  %46 = call i32 @sem_post(ptr noundef nonnull %45) #9
  br label %47
47:                                               ; preds = %41, %44, %19
  %48 = add nuw nsw i64 %20, 1
  %49 = icmp eq i64 %48, %17
  br i1 %49, label %18, label %19, !llvm.loop !45
}
; Function Attrs: nounwind uwtable
define internal fastcc void @work(ptr noundef %0, i32 noundef %1, i32 noundef %2) unnamed_addr #0 {
  %4 = alloca %struct.group, align 8
  %5 = getelementptr inbounds i8, ptr %0, i64 132
  %6 = load atomic i32, ptr %5 monotonic, align 4
  %7 = icmp sgt i32 %6, 0
  br i1 %7, label %8, label %68
8:                                                ; preds = %3
  %9 = getelementptr inbounds i8, ptr %0, i64 384
  %10 = zext i32 %2 to i64
  %11 = getelementptr inbounds i8, ptr %4, i64 8
  %12 = getelementptr inbounds i8, ptr %0, i64 152
  %13 = getelementptr inbounds i8, ptr %0, i64 136
  %14 = getelementptr inbounds i8, ptr %0, i64 144
  %15 = getelementptr inbounds i8, ptr %0, i64 260
  %16 = getelementptr inbounds i8, ptr %0, i64 256
  %17 = getelementptr inbounds i8, ptr %0, i64 264
  %18 = getelementptr inbounds i8, ptr %0, i64 272
  br label %19
19:                                               ; preds = %8, %65
  %20 = phi i32 [ 0, %8 ], [ %66, %65 ]
  %21 = add nsw i32 %20, %1
  %22 = icmp slt i32 %21, %6
  %23 = select i1 %22, i32 0, i32 %6
  %24 = sub nsw i32 %21, %23
  %25 = icmp slt i32 %24, %6
  br i1 %25, label %26, label %68
26:                                               ; preds = %19
  %27 = sext i32 %24 to i64
  %28 = getelementptr inbounds [256 x %struct.worker], ptr %9, i64 0, i64 %27
  %29 = icmp eq i32 %24, %1
  %30 = select i1 %29, i64 65536, i64 -1
  br label %31
31:                                               ; preds = %26, %64
  %32 = load atomic i64, ptr %28 monotonic, align 8
  br label %33
33:                                               ; preds = %42, %31
  %34 = phi i64 [ %32, %31 ], [ %46, %42 ]
  %35 = trunc i64 %34 to i32
  %36 = lshr i32 %35, 16
  %37 = and i32 %35, 65535
  %38 = lshr i64 %34, 32
  %39 = icmp eq i64 %38, %10
  %40 = icmp ult i32 %36, %37
  %41 = and i1 %39, %40
  br i1 %41, label %42, label %65
42:                                               ; preds = %33
  %43 = add i64 %34, %30
  %44 = cmpxchg weak ptr %28, i64 %34, i64 %43 acq_rel monotonic, align 8
  %45 = extractvalue { i64, i1 } %44, 1
  %46 = extractvalue { i64, i1 } %44, 0
  br i1 %45, label %47, label %33
47:                                               ; preds = %42
  %48 = add nsw i32 %37, -1
  %49 = select i1 %29, i32 %36, i32 %48
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #9
  store ptr null, ptr %4, align 8, !tbaa !46
  %50 = load i32, ptr %12, align 8, !tbaa !17
  store i32 %50, ptr %11, align 8, !tbaa !48
  %51 = load ptr, ptr %13, align 8, !tbaa !15
  %52 = load ptr, ptr %14, align 16, !tbaa !16
  %53 = call i32 %51(i32 noundef %49, ptr noundef nonnull %4, ptr noundef %52) #9
  %54 = icmp eq i32 %53, 0
  br i1 %54, label %56, label %55
55:                                               ; preds = %47
  store atomic i32 1, ptr %15 seq_cst, align 4
  br label %56
56:                                               ; preds = %55, %47
  %57 = atomicrmw sub ptr %16, i32 1 seq_cst, align 128
  %58 = icmp eq i32 %57, 1
  br i1 %58, label %59, label %64
59:                                               ; preds = %56
  %60 = atomicrmw xchg ptr %17, i32 0 seq_cst, align 8
  %61 = icmp eq i32 %60, 0
  br i1 %61, label %64, label %62
62:                                               ; preds = %59
  %63 = call i32 @sem_post(ptr noundef nonnull %18) #9
  br label %64
64:                                               ; preds = %62, %59, %56
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #9
  br label %31, !llvm.loop !49
65:                                               ; preds = %33
  %66 = add nuw nsw i32 %20, 1
  %67 = icmp eq i32 %66, %6
  br i1 %67, label %68, label %19, !llvm.loop !50
68:                                               ; preds = %65, %19, %3
  ret void
}
; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite)
declare void @llvm.memcpy.p0.p0.i64(ptr noalias nocapture writeonly, ptr noalias nocapture readonly, i64, i1 immarg) #6
; Function Attrs: nounwind
declare i32 @clock_gettime(i32 noundef, ptr noundef) local_unnamed_addr #4
; Function Attrs: nounwind
declare i32 @sigfillset(ptr noundef) local_unnamed_addr #4
; Function Attrs: nounwind
declare i32 @pthread_sigmask(i32 noundef, ptr noundef, ptr noundef) local_unnamed_addr #4
; Function Attrs: nounwind
declare i32 @sem_init(ptr noundef, i32 noundef, i32 noundef) local_unnamed_addr #4
; Function Attrs: nounwind
declare i32 @pthread_create(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #4
; Function Attrs: nounwind uwtable
define internal noundef ptr @serve(ptr noundef %0) #0 {
  %2 = alloca %struct.timespec, align 8
  %3 = alloca %struct.timespec, align 8
  %4 = alloca %struct.timespec, align 8
  %5 = load atomic i64, ptr @shared seq_cst, align 8
  %6 = inttoptr i64 %5 to ptr
  %7 = getelementptr inbounds i8, ptr %6, i64 384
  %8 = ptrtoint ptr %0 to i64
  %9 = ptrtoint ptr %7 to i64
  %10 = sub i64 %8, %9
  %11 = lshr exact i64 %10, 7
  %12 = trunc i64 %11 to i32
  %13 = getelementptr inbounds i8, ptr %6, i64 8
  %14 = load atomic i32, ptr %13 seq_cst, align 8
  %15 = icmp eq i32 %14, 0
  br i1 %15, label %16, label %81
16:                                               ; preds = %1
  %17 = getelementptr inbounds i8, ptr %4, i64 8
  %18 = getelementptr inbounds i8, ptr %6, i64 128
  %19 = getelementptr inbounds i8, ptr %3, i64 8
  %20 = getelementptr inbounds i8, ptr %0, i64 8
  %21 = getelementptr inbounds i8, ptr %0, i64 16
  %22 = getelementptr inbounds i8, ptr %2, i64 8
  br label %23
23:                                               ; preds = %16, %76
  %24 = phi i64 [ 4000, %16 ], [ %77, %76 ]
  %25 = phi i32 [ 0, %16 ], [ %78, %76 ]
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #9
  %26 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %4) #9
  %27 = load i64, ptr %4, align 8, !tbaa !8
  %28 = mul i64 %27, -1000000000
  %29 = load i64, ptr %17, align 8, !tbaa !10
  %30 = sub i64 %28, %29
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #9
  %31 = load atomic i32, ptr %18 acquire, align 128
  %32 = icmp eq i32 %31, %25
  br i1 %32, label %33, label %76
33:                                               ; preds = %23, %72
  %34 = phi i32 [ %73, %72 ], [ 0, %23 ]
  call void asm sideeffect "PAUSE", "~{memory}"() #9
  %35 = and i32 %34, 31
  %36 = icmp eq i32 %35, 0
  br i1 %36, label %37, label %72
37:                                               ; preds = %33
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #9
  %38 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %3) #9
  %39 = load i64, ptr %3, align 8, !tbaa !8
  %40 = mul nsw i64 %39, 1000000000
  %41 = load i64, ptr %19, align 8, !tbaa !10
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #9
  %42 = add i64 %41, %30
  %43 = add i64 %42, %40
  %44 = icmp slt i64 %43, %24
  br i1 %44, label %72, label %45
45:                                               ; preds = %37
  store atomic i32 1, ptr %20 seq_cst, align 8
  %46 = load atomic i32, ptr %18 seq_cst, align 128
  %47 = icmp eq i32 %46, %25
  br i1 %47, label %48, label %51
48:                                               ; preds = %45
  %49 = load atomic i32, ptr %13 seq_cst, align 8
  %50 = icmp eq i32 %49, 0
  br i1 %50, label %56, label %51
51:                                               ; preds = %48, %45
  %52 = atomicrmw xchg ptr %20, i32 0 seq_cst, align 8
  %53 = icmp eq i32 %52, 0
  br i1 %53, label %54, label %76
54:                                               ; preds = %51
  %55 = call i32 @sem_wait(ptr noundef nonnull %21) #9
  br label %76
56:                                               ; preds = %48, %56
  %57 = call i32 @sem_wait(ptr noundef nonnull %21) #9
  %58 = icmp eq i32 %57, 0
  br i1 %58, label %59, label %56, !llvm.loop !51
59:                                               ; preds = %56
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %2) #9
  %60 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %2) #9
  %61 = load i64, ptr %2, align 8, !tbaa !8
  %62 = mul nsw i64 %61, 1000000000
  %63 = load i64, ptr %22, align 8, !tbaa !10
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %2) #9
  %64 = add i64 %63, %30
  %65 = add i64 %64, %62
  %66 = icmp slt i64 %65, 250000
  %67 = shl nsw i64 %65, 1
  %68 = lshr i64 %24, 1
  %69 = select i1 %66, i64 %67, i64 %68
  %70 = call i64 @llvm.smin.i64(i64 %69, i64 250000)
  %71 = call i64 @llvm.smax.i64(i64 %70, i64 4000)
  br label %76
72:                                               ; preds = %33, %37
  %73 = add nuw nsw i32 %34, 1
  %74 = load atomic i32, ptr %18 acquire, align 128
  %75 = icmp eq i32 %74, %25
  br i1 %75, label %33, label %76, !llvm.loop !52
76:                                               ; preds = %72, %23, %51, %54, %59
  %77 = phi i64 [ %71, %59 ], [ %24, %54 ], [ %24, %51 ], [ %24, %23 ], [ %24, %72 ]
  %78 = load atomic i32, ptr %18 acquire, align 128
  call fastcc void @work(ptr noundef %6, i32 noundef %12, i32 noundef %78)
  %79 = load atomic i32, ptr %13 seq_cst, align 8
  %80 = icmp eq i32 %79, 0
  br i1 %80, label %23, label %81, !llvm.loop !53
81:                                               ; preds = %76, %1
  ret ptr null
}
; Function Attrs: nounwind
declare i32 @sched_getcpu() local_unnamed_addr #4
declare i32 @sem_wait(ptr noundef) local_unnamed_addr #7
; Function Attrs: nounwind
declare i32 @sched_getaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #4
; Function Attrs: nounwind
declare i32 @pthread_setaffinity_np(i64 noundef, i64 noundef, ptr noundef) local_unnamed_addr #4
; Function Attrs: nounwind
declare i32 @sem_post(ptr noundef) local_unnamed_addr #4
declare i32 @pthread_join(i64 noundef, ptr noundef) local_unnamed_addr #7
; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.smax.i64(i64, i64) #8
; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.smin.i64(i64, i64) #8
; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i64 @llvm.umin.i64(i64, i64) #8
; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smin.i32(i32, i32) #8
attributes #0 = { nounwind uwtable }
attributes #1 = { mustprogress nofree norecurse nosync nounwind willreturn memory(write, argmem: none, inaccessiblemem: none) uwtable }
attributes #2 = { mustprogress nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #3 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #4 = { nounwind }
attributes #5 = { nofree norecurse nosync nounwind memory(argmem: readwrite) uwtable }
attributes #6 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite) }
attributes #7 = { nounwind }
attributes #8 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #9 = { nounwind }
!4 = !{!5, !5, i64 0}
!5 = !{!"long", !6, i64 0}
!6 = !{!"omnipotent char", !7, i64 0}
!7 = !{!"Simple C/C++ TBAA"}
!8 = !{!9, !5, i64 0}
!9 = !{!"timespec", !5, i64 0, !5, i64 8}
!10 = !{!9, !5, i64 8}
!11 = !{!12, !5, i64 32}
!12 = !{!"", !6, i64 0, !6, i64 4, !6, i64 8, !5, i64 16, !5, i64 24, !5, i64 32, !5, i64 40, !6, i64 128, !6, i64 132, !13, i64 136, !13, i64 144, !14, i64 152, !6, i64 256, !6, i64 260, !6, i64 264, !6, i64 272, !6, i64 384}
!13 = !{!"any pointer", !6, i64 0}
!14 = !{!"int", !6, i64 0}
!15 = !{!12, !13, i64 136}
!16 = !{!12, !13, i64 144}
!17 = !{!12, !14, i64 152}
!18 = !{!12, !5, i64 16}
!19 = distinct !{!19, !20}
!20 = !{!"llvm.loop.mustprogress"}
!21 = !{!12, !5, i64 24}
!22 = !{i64 2477}
!23 = distinct !{!23, !20}
!24 = distinct !{!24, !20}
!25 = !{!12, !5, i64 40}
!26 = !{!27, !5, i64 8}
!27 = !{!"", !14, i64 0, !14, i64 4, !5, i64 8}
!28 = !{!29, !5, i64 48}
!29 = !{!"", !6, i64 0, !6, i64 8, !14, i64 12, !6, i64 16, !5, i64 48}
!30 = !{!29, !14, i64 12}
!31 = distinct !{!31, !20}
!32 = distinct !{!32, !20}
!33 = !{!34, !34, i64 0}
!34 = !{!"float", !6, i64 0}
!35 = distinct !{!35, !20}
!36 = !{!6, !6, i64 0}
!37 = distinct !{!37, !20}
!38 = distinct !{!38, !20}
!39 = distinct !{!39, !20}
!40 = distinct !{!40, !41}
!41 = !{!"llvm.loop.unroll.disable"}
!42 = distinct !{!42, !20}
!43 = distinct !{!43, !20}
!44 = distinct !{!44, !20}
!45 = distinct !{!45, !20}
!46 = !{!47, !13, i64 0}
!47 = !{!"", !13, i64 0, !14, i64 8}
!48 = !{!47, !14, i64 8}
!49 = distinct !{!49, !20}
!50 = distinct !{!50, !20}
!51 = distinct !{!51, !20}
!52 = distinct !{!52, !20}
!53 = distinct !{!53, !20}
